#include "tests/support/virtual_cluster.h"

#include <algorithm>
#include <utility>

namespace accel::agent::test {
namespace {

using supervisor::ExitCause;
using supervisor::WorkerExit;

constexpr const char* kJob = "job-1";
constexpr const char* kStop = "stop";  // request_id of stops whose answers count
constexpr const char* kStore = "10.0.0.1:29500";

const JobUuid& uuid_of(const ParkWorkers& park) {
  return park.assign.job->job_uuid;
}

bool is_running(const Workers& workers) {
  return workers.phase == Workers::Phase::kRunning;
}

// In order, for std::visit over several kinds.
template <typename... Fs>
struct Overloaded : Fs... {
  using Fs::operator()...;
};
template <typename... Fs>
Overloaded(Fs...) -> Overloaded<Fs...>;

}  // namespace

JobDescription small_job(int min_nodes, int max_nodes) {
  JobDescription job;
  job.job_id = "train";
  job.job_uuid = kJob;
  job.min_nodes = min_nodes;
  job.max_nodes = max_nodes;
  job.procs_per_node = 2;
  job.restart.budget.max_restarts = 1;
  job.stop.grace = Milliseconds(1'000);
  job.stop.kill_wait = Milliseconds(1'000);
  return job;
}

VirtualCluster::VirtualCluster(const ClusterOptions& options) : options_(options) {
  Step first = found(1, options.config, now_);
  state_ = std::move(first.state);
  carry_out(first.actions);
  for (int i = 0; i < options.num_nodes; ++i) {
    VirtualNode& node = nodes_.emplace_back();
    node.info.node_id = "n" + std::to_string(i);
    node.info.hostname = "host-" + std::to_string(i);
    node.info.boot_id = "boot";
    node.info.addresses = {"10.0.0." + std::to_string(i)};
    node.info.slots = 2;
    start_agent(node);
  }
  tell(StartJob{"request-1", options.job});
}

const Job* VirtualCluster::job() const {
  const auto found = state_.jobs.find(kJob);
  return found == state_.jobs.end() ? nullptr : &found->second;
}

void VirtualCluster::breach(const std::string& what) {
  if (violation_.empty()) violation_ = what;
}

// ---- the coordinator ----

void VirtualCluster::tell(decltype(Event::what) what) {
  if (!is_coordinator_up_) return;
  if (std::holds_alternative<ScaleJob>(what) || std::holds_alternative<DrainNode>(what)) {
    ++num_planned_;
  }
  const std::string before = looks();
  Step result = step(std::move(state_), Event{now_, chance, std::move(what)});
  state_ = std::move(result.state);
  if (only_answers_beats(result.actions) && looks() != before)
    breach("a job looks different after the answer to a beat");
  put_bug();
  carry_out(result.actions);
  check_budget();
  if (has_ended()) is_told_over_ = true;
}

void VirtualCluster::stop_job(bool kill, std::optional<Milliseconds> grace) {
  tell(StopJob{kJob, kill, grace, kStop});
}

// What agent/cluster/job_view.h shows of the jobs.
std::string VirtualCluster::looks() const {
  std::string text;
  for (const auto& [uuid, job] : state_.jobs) {
    text += uuid + std::string(name_of(job.phase)) + job.text + std::to_string(job.generation) +
            '/' + std::to_string(job.history.total()) + '/' +
            std::to_string(job.description->min_nodes) + '/' +
            std::to_string(job.description->max_nodes);
    for (const Member& member : job.members) {
      const auto node = state_.nodes.find(member.node_id);
      text += '|' + member.node_id + '/' + std::to_string(member.first_rank) + '/' +
              std::to_string(member.num_ranks) + (member.is_gone ? " gone" : "") +
              (node == state_.nodes.end() ? "" : node->second.info.endpoint);
    }
  }
  return text;
}

bool VirtualCluster::is_answered_early(const Persist& persist) const {
  if (options_.bug == SeededBug::kAnswersBeforeWriting) {
    return persist.sync && state_.tickets.count(persist.ticket);
  }
  const bool is_end = job() && job()->ending && job()->ending->ticket == persist.ticket;
  return options_.bug == SeededBug::kTellsEndsBeforeWriting &&
         (is_end || state_.stops.count(persist.ticket));
}

void VirtualCluster::put_bug() {
  const auto found = state_.jobs.find(kJob);
  if (found == state_.jobs.end()) return;
  Job& job = found->second;
  if (options_.bug == SeededBug::kForgetsLease) {
    for (Member& member : job.members) member.lease_over = TimePoint{};
  }
  if (options_.bug == SeededBug::kForgetsBudget) job.history.restarts = 0;
}

void VirtualCluster::carry_out(const Actions& actions) {
  for (const Action& action : actions) {
    std::visit(Overloaded{[&](const Send& send) {
                            check_start(send.message);
                            if (keeps_sent) sent_.emplace_back(send.connection, send.message);
                            for (VirtualNode& node : nodes_) {
                              if (node.connection == send.connection) {
                                node.down.emplace_back(send.connection, send.message);
                              }
                            }
                          },
                          [&](const CloseConnection& close) {
                            for (VirtualNode& node : nodes_) {
                              if (node.connection != close.connection) continue;
                              // What was sent before arrives before the end of the connection.
                              while (!node.down.empty() && node.connection == close.connection) {
                                deliver_down(node, 0, false);
                              }
                              if (node.connection != close.connection) continue;
                              node.connection = 0;
                              tell_node(static_cast<int>(&node - nodes_.data()), Disconnected{});
                            }
                          },
                          [&](const Persist& persist) {
                            disk_.push_back({persist.ticket, persist.record});
                            if (is_answered_early(persist)) tell(Persisted{persist.ticket, true});
                          },
                          [&](const JobReply& reply) {
                            reports_.push_back(std::string("reply ") +
                                               (reply.accepted ? "accepted" : "refused") + " " +
                                               reply.message);
                            if (reply.request_id == kStop && reply.accepted) is_told_over_ = true;
                          },
                          [&](const Report& report) {
                            if (keeps_reports) reports_.push_back(report.text);
                          }},
               action);
  }
}

void VirtualCluster::write_next() {
  if (disk_.empty()) return;
  const Write write = std::move(disk_.front());
  disk_.pop_front();
  if (!disk_full_) durable_[write.record.key] = write.record.value;
  tell(Persisted{write.ticket, !disk_full_});
}

void VirtualCluster::crash_coordinator() {
  is_coordinator_up_ = false;
  disk_.clear();
  for (VirtualNode& node : nodes_) {
    node.up.clear();
    node.down.clear();
    if (node.connection == 0) continue;
    node.connection = 0;
    if (node.is_agent_up) tell_node(static_cast<int>(&node - nodes_.data()), Disconnected{});
  }
}

void VirtualCluster::start_coordinator() {
  std::vector<Record> records;
  for (const auto& [key, value] : durable_) {
    if (!value.empty()) records.push_back({key, value});
  }
  const std::uint64_t epoch = std::max(recorded_epoch(records), state_.epoch) + 1;
  auto recovered = recover(records, epoch, options_.config, now_);
  if (!recovered) return breach("recovery failed: " + recovered.error().message());
  is_coordinator_up_ = true;
  state_ = std::move(recovered->state);
  const bool is_being_stopped = phase() == JobPhase::kStopping && job()->stop.end;
  if (is_told_over_ && !has_ended() && !is_being_stopped) {
    breach("a job goes on of which somebody was told that it is over");
  }
  carry_out(recovered->actions);
  // The user's client asks again when the job is not known, unless it heard of its end.
  if (!is_told_over_) tell(StartJob{"request-1", options_.job});
}

// ---- the nodes ----

void VirtualCluster::tell_node(int index, decltype(MemberEvent::what) what) {
  VirtualNode& node = nodes_[static_cast<std::size_t>(index)];
  if (!node.is_agent_up || node.is_paused) return;
  const SessionId before = node.member.session_id;
  MemberEvent event;
  event.at = now_;
  event.fresh_session = node.info.node_id + "/" + std::to_string(node.num_sessions);
  event.what = std::move(what);
  MemberStep result = step(std::move(node.member), event);
  node.member = std::move(result.state);
  if (node.member.session_id != before) ++node.num_sessions;
  carry_out(node, result.actions);
}

void VirtualCluster::carry_out(VirtualNode& node, const std::vector<MemberAction>& actions) {
  Workers& workers = node.workers;
  for (const MemberAction& action : actions) {
    std::visit(Overloaded{[&](const SendUp& send) {
                            if (const auto* ready = std::get_if<Ready>(&send.message.body)) {
                              if (ready->failed_checks.empty()) {
                                ready_[send.message.fence.generation].insert(node.info.node_id);
                              }
                            }
                            if (node.connection == 0) return;
                            node.up.emplace_back(FromAgent{node.connection, send.message});
                          },
                          [&](const ParkWorkers& park) {
                            if (is_running(workers))
                              breach("workers are parked beside running ones");
                            workers = {park.generation,
                                       Workers::Phase::kParked,
                                       park.assign.first_rank,
                                       park.assign.num_ranks,
                                       {},
                                       park.lease_until};
                            node.local.emplace_back(
                                WorkersParked{uuid_of(park),
                                              park.generation,
                                              kStore,
                                              {},
                                              Milliseconds(100) * (&node - nodes_.data())});
                          },
                          [&](const RenewLease& renewal) {
                            if (workers.lease_until && workers.generation == renewal.generation)
                              workers.lease_until = std::max(*workers.lease_until, renewal.until);
                          },
                          [&](const ReleaseWorkers& release) {
                            check_release(node, release);
                            workers.phase = Workers::Phase::kRunning;
                            started_.insert(release.generation);
                            workers.ends_at = now_ + options_.work;
                            check_running();
                          },
                          [&](const StopWorkers& stop) {
                            // The shim's workers end at once here: how long they take is its own affair.
                            if (workers.generation == stop.generation)
                              workers.phase = Workers::Phase::kNone;
                            node.local.emplace_back(WorkersGone{stop.job_uuid, stop.generation, 0});
                          },
                          [&](const TellJob&) {},
                          [&](const ConsiderJob& invitation) { consider(node, invitation); },
                          [&](const TellQuarantine&) {},
                          [&](const Reconnect&) {
                            if (node.connection == 0) return;
                            node.up.emplace_back(ConnectionLost{node.connection});
                            node.connection = 0;
                            node.connect_at = now_ + Milliseconds(1'000);
                            node.down.clear();
                            node.member.is_connected = node.member.is_welcome = false;
                          }},
               action);
  }
}

void VirtualCluster::start_agent(VirtualNode& node) {
  // Hard fencing: the shim tells its next owner until when the lease runs.
  const TimePoint acked_at = node.workers.lease_until
                                 ? *node.workers.lease_until - options_.job.fence.lease
                                 : node.member.acked_at;
  const auto joined = node.member.jobs.find(kJob);
  std::optional<Adopted> adopted;
  if (joined != node.member.jobs.end() && node.workers.phase != Workers::Phase::kNone) {
    const MemberPhase phase = node.workers.phase == Workers::Phase::kParked ? MemberPhase::kPrepared
                              : node.workers.phase == Workers::Phase::kRunning
                                  ? MemberPhase::kRunning
                                  : MemberPhase::kDone;
    adopted = Adopted{joined->second.job,
                      joined->second.join,
                      {kJob, joined->second.assigned_epoch, node.workers.generation, phase},
                      node.workers.num_ranks,
                      acked_at};
  }
  node.is_agent_up = true;
  node.is_paused = false;
  node.member = MemberState{};
  node.member.node = node.info;
  node.member.session_id = node.info.node_id + "/" + std::to_string(node.num_sessions++);
  node.local.clear();
  const int index = static_cast<int>(&node - nodes_.data());
  if (adopted) tell_node(index, *adopted);
  if (!options_.job.recruits) tell_node(index, WantJob{{kJob}});
}

void VirtualCluster::consider(VirtualNode& node, const ConsiderJob& invitation) {
  const int index = static_cast<int>(&node - nodes_.data());
  const JobUuid& uuid = invitation.job->job_uuid;
  if (node.ignores_invitations) return;
  ++node.num_invitations;
  if (!node.declines.empty()) return tell_node(index, DeclineJob{uuid, node.declines});
  tell_node(index, WantJob{{uuid}});
}

void VirtualCluster::crash_agent(VirtualNode& node) {
  node.is_agent_up = false;
  node.local.clear();
  node.down.clear();
  if (node.connection != 0) node.up.emplace_back(ConnectionLost{node.connection});
  node.connection = 0;
}

void VirtualCluster::connect(VirtualNode& node) {
  node.connection = next_connection_++;
  tell_node(static_cast<int>(&node - nodes_.data()), Connected{});
}

void VirtualCluster::deliver_up(VirtualNode& node, int index, bool keep) {
  const auto at = node.up.begin() + index;
  VirtualNode::Up message = *at;
  if (!keep) node.up.erase(at);
  if (!is_coordinator_up_) return;
  std::visit([this](auto& what) { tell(std::move(what)); }, message);
}

void VirtualCluster::deliver_down(VirtualNode& node, int index, bool keep) {
  const auto at = node.down.begin() + index;
  const auto [connection, message] = *at;
  if (!keep) node.down.erase(at);
  if (connection != node.connection || !node.is_agent_up || node.is_paused) return;
  const auto* fenced = std::get_if<Fenced>(&message.body);
  if (fenced && fenced->reason != FenceReason::kUnknownSession) {
    const bool is_heard = message.fence.session_id == node.member.session_id &&
                          message.fence.leader_epoch >= node.member.epoch;
    if (is_heard) {
      void_sessions_.insert(node.member.session_id);
      if (options_.bug == SeededBug::kKeepsVoidSession) return;
    }
  }
  tell_node(static_cast<int>(&node - nodes_.data()), FromCoordinator{message});
}

void VirtualCluster::end_workers(VirtualNode& node) {
  Workers& workers = node.workers;
  workers.phase = Workers::Phase::kDone;
  for (int i = 0; i < workers.num_ranks; ++i) {
    WorkerExit exit;
    exit.local_rank = i;
    exit.global_rank = workers.first_rank + i;
    exit.cause = ExitCause::kOk;
    exit.seen_at = now_.time_since_epoch();
    node.local.emplace_back(WorkerExited{kJob, workers.generation, 10, exit});
  }
}

void VirtualCluster::fail_rank(VirtualNode& node) {
  WorkerExit exit;
  exit.local_rank = 0;
  exit.global_rank = node.workers.first_rank;
  exit.cause = ExitCause::kNonZero;
  exit.exit_code = 3;
  exit.seen_at = now_.time_since_epoch();
  node.workers.phase = Workers::Phase::kNone;  // its shim stops the others
  node.local.emplace_back(WorkerExited{kJob, node.workers.generation, 5, exit});
}

// ---- time ----

TimePoint VirtualCluster::next_moment() const {
  TimePoint next = TimePoint::max();
  const auto consider = [&](TimePoint at) {
    if (at > now_) next = std::min(next, at);
  };
  // What is due already is done at once.
  if (is_coordinator_up_) consider(std::max(next_wake(state_), now_ + Duration(1)));
  for (const VirtualNode& node : nodes_) {
    if (node.is_up && is_running(node.workers)) {
      consider(node.workers.ends_at);
      if (node.workers.lease_until) consider(*node.workers.lease_until);
    }
    if (node.is_agent_up && !node.is_paused) {
      consider(next_wake(node.member));
      if (node.connection == 0) consider(node.connect_at);
    }
  }
  return next;
}

void VirtualCluster::advance() {
  const TimePoint next = next_moment();
  if (next != TimePoint::max()) advance_to(next);
}

void VirtualCluster::advance_to(TimePoint at) {
  now_ = at;
  for (VirtualNode& node : nodes_) {
    if (!node.is_up || !is_running(node.workers)) continue;
    // The shim keeps the lease: an agent that is stopped or dead cannot.
    if (node.workers.lease_until && now_ >= *node.workers.lease_until) {
      node.workers.phase = Workers::Phase::kNone;
    } else if (now_ >= node.workers.ends_at) {
      end_workers(node);
    }
  }
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].is_agent_up) tell_node(static_cast<int>(i), MemberTick{});
  }
  tell(Tick{});
}

// ---- what must hold ----

void VirtualCluster::check_start(const CoordinatorMessage& message) {
  if (!std::holds_alternative<Start>(message.body) || !job()) return;
  if (is_told_over_) breach("a job runs again of which somebody was told that it is over");
  const std::uint64_t generation = message.fence.generation;
  const std::string key = std::string("job/") + kJob;
  const auto record = durable_.find(key);
  const std::string running = "\"phase\":" + std::to_string(static_cast<int>(JobPhase::kRunning));
  const std::string number = "\"generation\":" + std::to_string(generation) + ",";
  const bool is_committed = record != durable_.end() &&
                            record->second.find(running) != std::string::npos &&
                            record->second.find(number) != std::string::npos;
  if (!is_committed) breach("Start of a generation whose commit is not durable");
  for (const Member& member : job()->members) {
    if (!ready_[generation].count(member.node_id)) {
      breach("Start although " + member.node_id + " was never ready");
    }
  }
}

void VirtualCluster::check_release(const VirtualNode& node, const ReleaseWorkers& release) {
  if (void_sessions_.count(node.member.session_id)) {
    breach(node.info.node_id + " starts workers in a session that is void");
  }
  if (node.workers.phase != Workers::Phase::kParked ||
      node.workers.generation != release.generation) {
    breach(node.info.node_id + " starts workers that are not parked");
  }
}

void VirtualCluster::check_running() {
  const bool is_hard = options_.job.fence.fencing == Fencing::kHard;
  for (const VirtualNode& a : nodes_) {
    for (const VirtualNode& b : nodes_) {
      if (&a >= &b || !is_running(a.workers) || !is_running(b.workers)) continue;
      if (a.workers.generation != b.workers.generation) {
        if (is_hard) breach("workers of two generations run at the same time");
        continue;
      }
      const bool are_apart = a.workers.first_rank + a.workers.num_ranks <= b.workers.first_rank ||
                             b.workers.first_rank + b.workers.num_ranks <= a.workers.first_rank;
      if (!are_apart) breach("a rank runs on two nodes");
    }
  }
}

void VirtualCluster::check_budget() {
  const JobRestartPolicy& policy = options_.job.restart;
  const auto most = static_cast<std::size_t>(1 + policy.budget.max_restarts +
                                             policy.budget.max_out_of_memory + num_planned_);
  if (started_.size() > most) breach("more generations ran than the budgets allow");
}

}  // namespace accel::agent::test
