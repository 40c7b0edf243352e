#include "agent/parts/node_jobs.h"

#include <algorithm>

#include <boost/asio/post.hpp>
#include <fcntl.h>
#include <unistd.h>

#include "agent/access/caller_shares.h"
#include "agent/files/log_folder.h"
#include "agent/files/open_files.h"
#include "agent/files/shim_folder.h"
#include "agent/jobs/job_request.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/shims/worker_signals.h"
#include "runtime/supervisor/owner/last_word.h"
#include "runtime/wall_clock.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::size_t kMostNotice = 4096;  // bytes in the log, of what a shim says

}  // namespace

NodeJobs::NodeJobs(asio::io_context& loop,
                   UserDirectory& users,
                   std::shared_ptr<grpc::Channel> channel,
                   NodeJobsOptions options,
                   Handlers handlers)
    : loop_(loop),
      users_(users),
      options_(std::move(options)),
      handlers_(std::move(handlers)),
      session_(
          loop,
          std::move(channel),
          {.node = options_.node,
           .token_key = options_.token_key,
           .job = std::nullopt,
           .open_leader = options_.open_leader},
          {.on_action = [this](const MemberAction& action) { carry_out(action); },
           // What one says is a beat old.
           .on_beat =
               [this] {
                 for (const auto& part : parts_) {
                   if (part->workers) part->workers->ask_steps();
                 }
               },
           .on_connection = [this](bool is_connected,
                                   const std::string& why) { on_connection(is_connected, why); },
           .on_turned_away =
               [this](const std::string& why) {
                 if (std::exchange(last_trouble_, why) != why)
                   handlers_.log("the coordinator refuses this node: " + why);
               },
           .slots_taken = [this] { return handlers_.slots_taken ? handlers_.slots_taken() : 0; }}) {
}

void NodeJobs::start() {
  recover();
  connect_when_settled();
}

const NodeJobs::Part* NodeJobs::find(const std::string& uuid) const {
  const auto found = std::find_if(parts_.rbegin(), parts_.rend(), [&](const auto& part) {
    return part->spec.job_uuid() == uuid;
  });
  return found == parts_.rend() ? nullptr : found->get();
}

NodeJobs::Part* NodeJobs::part_of(const JobUuid& uuid) {
  for (const auto& part : parts_) {
    if (part->spec.job_uuid() == uuid && !part->has_ended) return part.get();
  }
  return nullptr;
}

void NodeJobs::signal(const Part& part, int signal) {
  if (part.workers) signal_workers(part.workers->pids(), part.user.credentials.uid, signal);
}

void NodeJobs::dump_stacks(const Part& part) {
  if (part.workers) part.workers->dump_stacks();
}

int NodeJobs::num_running() const {
  return static_cast<int>(std::count_if(
      parts_.begin(), parts_.end(), [](const auto& part) { return part->workers != nullptr; }));
}

bool NodeJobs::holds_all() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) {
    return part->workers == nullptr || !part->shim_dir.empty();
  });
}

void NodeJobs::leave_all(const std::string& reason) {
  handle(WantLeave{.job_uuid = {}, .reason = reason});
  for (const auto& part : parts_) {
    if (!part->has_ended && !part->is_leaving) begin_leaving(*part);
  }
}

void NodeJobs::leave_jobs(const std::string& reason) {
  for (const auto& part : parts_) {
    if (part->has_ended || part->is_leaving) continue;
    handle(WantLeave{.job_uuid = part->spec.job_uuid(), .reason = reason});
    begin_leaving(*part);
  }
}

void NodeJobs::begin_leaving(Part& part) {
  part.is_leaving = true;
  // One whose shim is still being taken over follows when it has been.
  if (!part.is_awaited) leave(part);
}

void NodeJobs::leave(Part& part) {
  if (!part.workers) return end(part);
  // What the coordinator has to say about it does not matter to this node any more.
  part.workers->stop({.job_uuid = part.spec.job_uuid(),
                      .generation = part.generation,
                      .grace = describe_job(part.spec).stop.grace,
                      .reason = StopReason::kCancelled});
}

void NodeJobs::kill_all() {
  for (const auto& part : parts_) {
    if (part->is_awaited) {
      adopter_->hurry(part->spec.job_id(), part->instance);
    } else if (part->workers) {
      part->workers->kill();
    }
  }
}

void NodeJobs::close(std::function<void()> done) {
  is_closing_ = true;
  session_.close(std::move(done));
}

// ---- what the session wants ----

void NodeJobs::carry_out(const MemberAction& action) {
  if (const auto* order = std::get_if<ParkWorkers>(&action)) {
    park(*order);
  } else if (const auto* renewal = std::get_if<RenewLease>(&action)) {
    Part* part = part_of(renewal->job_uuid);
    if (part != nullptr && part->workers) part->workers->renew(*renewal);
  } else if (const auto* release = std::get_if<ReleaseWorkers>(&action)) {
    Part* part = part_of(release->job_uuid);
    if (part != nullptr && part->workers) part->workers->release(*release);
  } else if (const auto* stop = std::get_if<StopWorkers>(&action)) {
    Part* part = part_of(stop->job_uuid);
    if (part != nullptr) part->counters.ask_to_stop(SteadyClock().now());
    if (part != nullptr && part->workers) return part->workers->stop(*stop);
    const bool is_unproved = std::any_of(parts_.begin(), parts_.end(), [stop](const auto& ended) {
      return ended->spec.job_uuid() == stop->job_uuid && ended->unproved == stop->generation;
    });
    if (is_unproved) return;
    asio::post(loop_, [this, gone = *stop] {
      handle(WorkersGone{.job_uuid = gone.job_uuid, .generation = gone.generation});
    });
  } else if (const auto* notice = std::get_if<TellJob>(&action)) {
    tell(notice->notice);
  } else if (const auto* quarantine = std::get_if<TellQuarantine>(&action)) {
    const auto& told = quarantine->quarantine;
    handlers_.log(told.remaining.count() == 0 ? "this node is no longer set aside"
                                              : "this node is set aside: " + told.reason);
  } else if (const auto* invitation = std::get_if<ConsiderJob>(&action)) {
    look_at(invitation->job);
  }
}

void NodeJobs::on_connection(bool is_connected, const std::string& why) {
  if (is_connected) {
    last_trouble_.clear();
  } else if (std::exchange(last_trouble_, why) != why) {
    handlers_.log("no session with the coordinator: " + why);
  }
  handlers_.on_connection(is_connected);
}

// ---- parts ----

// Invitations come with each beat: the one that waits for its user answers for those meanwhile.
void NodeJobs::look_at(const std::shared_ptr<const JobDescription>& job) {
  if (!looked_at_.insert(job->job_uuid).second) return;
  const UserKey user = job->user;
  users_.look_up({user}, [this, job] {
    looked_at_.erase(job->job_uuid);
    consider(*job);
  });
}

void NodeJobs::consider(const JobDescription& job) {
  v1::JobSpec spec = to_job_spec(job);
  auto user = handlers_.admit(spec);
  if (!user) {
    handlers_.log("does not take part in job " + job.job_id + ": " + user.error().message());
    return handle(DeclineJob{.job_uuid = job.job_uuid, .reason = user.error().message()});
  }
  if (!*user) return;
  auto part = std::make_unique<Part>();
  part->spec = std::move(spec);
  part->user = **std::move(user);
  part->record_name = record_name(part->user.credentials.uid, part->spec.job_id());
  // What this node cannot give is a reason to stay away, not to be set aside as broken.
  if (auto tried = shim_spec(*part, job.procs_per_node); !tried) {
    handlers_.log("does not take part in job " + job.job_id + ": " + tried.error().message());
    return handle(DeclineJob{.job_uuid = job.job_uuid, .reason = tried.error().message()});
  }
  parts_.push_back(std::move(part));
  forget_oldest();
  handle(WantJob{Join{.job_uuid = job.job_uuid, .slots = job.procs_per_node}});
}

// Cores and variables are this node's own.
Result<supervisor::JobSpec> NodeJobs::shim_spec(const Part& part, int num_ranks) const {
  const LocalPart local = {.num_ranks = num_ranks, .world_size = num_ranks};
  std::vector<std::string> scrubbed;
  const std::string folder = options_.log_dir + "/" + std::to_string(part.user.credentials.uid);
  const bool is_other_user = part.user.credentials.uid != ::geteuid();
  auto spec = make_job_spec(part.spec, local, part.user, folder, is_other_user, scrubbed);
  if (auto bound = apply_affinity(part.spec, GrantedCpus(), spec); !bound)
    return std::move(bound).error();
  if (auto passed = pass_environment(part.spec, process_env(), is_other_user, spec); !passed)
    return std::move(passed).error();
  return spec;
}

NodeWorkersOptions NodeJobs::workers_options(const Part& part, supervisor::JobSpec spec) const {
  NodeWorkersOptions options;
  options.job_uuid = part.spec.job_uuid();
  options.spec = std::move(spec);
  options.spec.node_id = options_.node.node_id;
  if (!part.shim_dir.empty()) {
    options.spec.owner.on_loss = supervisor::OwnerLoss::kHold;
    options.spec.owner.hold = options_.hold;
    options.spec.owner.runtime_dir = part.shim_dir;
    options.spec.owner.token = options_.records->token_for(part.record_name);
    options.spec.instance = options_.records->instance_for(part.record_name);
  }
  options.address = options_.node.addresses.front();
  options.shim.shim_path = options_.shim_path;
  options.shim.owner = supervisor::OwnerKind::kManyJobs;
  if (options_.changes_user) options.shim.credentials = part.user.credentials;
  options.shim.cgroup = part.cgroup;
  options.shim.env = EnvMap{{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  std::fill(std::begin(options.shim.stdio), std::end(options.shim.stdio), null_device());
  return options;
}

void NodeJobs::make_workers(Part& part, supervisor::JobSpec spec) {
  const std::string uuid = part.spec.job_uuid();
  part.workers = std::make_unique<NodeWorkers>(
      loop_,
      workers_options(part, std::move(spec)),
      NodeWorkers::Handlers{
          .on_parked = [this](WorkersParked event) { handle(std::move(event)); },
          .on_exited = [this](WorkerExited event) { handle(std::move(event)); },
          .on_gone =
              [this](WorkersGone event) {
                Part* of = part_of(event.job_uuid);
                if (of != nullptr && !event.is_proved) of->unproved = event.generation;
                handle(std::move(event));
                if (of != nullptr && of->is_leaving && of->workers) of->workers->finish();
              },
          .on_steps = [this](StepsMade event) { handle(std::move(event)); },
          .on_notice =
              [this, id = part.spec.job_id()](const std::string& line) {
                handlers_.log("job " + id + ": " + line.substr(0, kMostNotice));
              },
          // Not from within its own call.
          .on_finished =
              [this, uuid] {
                asio::post(loop_, [this, uuid] {
                  if (Part* of = part_of(uuid)) end(*of);
                });
              },
          .on_adopted = [this,
                         uuid](const AdoptedGeneration& adopted) { on_adopted(uuid, adopted); },
          .on_caught_up = [this, uuid] { on_caught_up(uuid); },
          .on_heard =
              [this, uuid](const supervisor::HostEvent& event) {
                Part* of = part_of(uuid);
                if (of != nullptr && handlers_.on_heard) handlers_.on_heard(*of, event);
                if (of != nullptr) of->timeline.hear(event, seconds_since_1970(), of->num_ranks);
                if (of != nullptr && options_.totals != nullptr)
                  of->counters.hear(event, SteadyClock().now(), *options_.totals);
              }});
}

void NodeJobs::park(const ParkWorkers& order) {
  Part* part = part_of(order.assign.job->job_uuid);
  if (part == nullptr) return;
  part->generation = order.generation;
  part->leader_epoch = order.assigned_epoch;
  part->node_index = order.assign.node_index;
  part->first_rank = order.assign.first_rank;
  part->num_ranks = order.assign.num_ranks;
  part->counters.begin(SteadyClock().now());
  session_.find_members(order.assign, [this, order](const std::vector<std::string>& members) {
    const Part* const of = part_of(order.assign.job->job_uuid);
    if (of == nullptr || !of->is_recovered) return park_with(order, members);
    // Its record knows the user's name and uid alone.
    const UserKey user = order.assign.job->user;
    users_.look_up({user}, [this, order, members] { park_with(order, members); });
  });
}

void NodeJobs::park_with(const ParkWorkers& order, std::vector<std::string> members) {
  // A Stop may have come while the members and the user were asked for.
  const auto& jobs = session_.state().jobs;
  const auto membership = jobs.find(order.assign.job->job_uuid);
  const bool is_wanted = membership != jobs.end() &&
                         membership->second.generation == order.generation &&
                         membership->second.phase == MemberPhase::kPreparing;
  Part* part = part_of(order.assign.job->job_uuid);
  if (!is_wanted || part == nullptr) return;
  if (const auto failed = prepare(*part, *order.assign.job)) {
    return handle(WorkersParked{.job_uuid = order.assign.job->job_uuid,
                                .generation = order.generation,
                                .store_endpoint = {},
                                .failed_checks = {*failed}});
  }
  part->workers->park(order, std::move(members));
}

// What is there before anything runs: a shim that outlives this agent is always found. But for its records, which are the
// agent's, what is missing may be the user's doing (its folders, its limits): it is held against this job alone.
std::optional<FailedCheck> NodeJobs::prepare(Part& part, const JobDescription& job) {
  const bool has_shim = part.workers && part.workers->has_shim();
  if (!has_shim && std::exchange(part.is_recovered, false)) {
    part.spec = to_job_spec(job);
    auto user = users_.find(part.spec.user());
    if (!user) return FailedCheck{"user", user.error().message(), true};
    part.user = *std::move(user);
  }
  const auto folder = prepare_log_folder(options_.log_dir, part.user, options_.changes_user);
  if (!folder) return FailedCheck{"log folder", folder.error().message(), true};
  if (!has_shim) {
    part.shim_dir.clear();
    if (options_.records && options_.hold.count() > 0) {
      auto shims = prepare_shim_folder(options_.shims_dir, part.user, options_.changes_user);
      if (!shims) return FailedCheck{"shim folder", shims.error().message(), true};
      part.shim_dir = *std::move(shims);
      supervisor::remove_last_word(part.shim_dir, part.spec.job_id());
    }
  }
  if (!has_shim) {
    if (auto failed = prepare_cgroup(part)) return failed;
  }
  if (auto written = write_record(part); !written)
    return FailedCheck{"record", written.error().message()};
  if (has_shim) return std::nullopt;
  auto spec = shim_spec(part, part.num_ranks);
  if (!spec) return FailedCheck{"resources", spec.error().message(), true};
  if (!part.workers) {
    make_workers(part, *std::move(spec));
  } else {
    part.workers->equip(workers_options(part, *std::move(spec)));
  }
  return std::nullopt;
}

// Of a shim that is gone, or never came, one may be there still.
std::optional<FailedCheck> NodeJobs::prepare_cgroup(Part& part) {
  if (options_.cgroups == nullptr) return std::nullopt;
  options_.cgroups->remove(part.cgroup);
  std::optional<supervisor::Credentials> user;
  if (options_.changes_user) user = part.user.credentials;
  auto made = options_.cgroups->make(part.record_name, user);
  if (!made) return FailedCheck{"cgroup", made.error().message()};
  part.cgroup = *std::move(made);
  return std::nullopt;
}

void NodeJobs::tell(const Notice& notice) {
  Part* part = part_of(notice.job_uuid);
  if (part == nullptr) return;
  handlers_.log("job " + part->spec.job_id() + ": " + notice.text);
  if (!ends_job(notice.kind) || part->is_leaving) return;
  if (part->workers) return part->workers->finish();
  end(*part);
}

void NodeJobs::end(Part& part) {
  part.has_ended = true;
  part.workers.reset();
  if (options_.cgroups != nullptr) options_.cgroups->remove(part.cgroup);
  remove_record(part);
  handlers_.on_ended();
}

void NodeJobs::forget_oldest() {
  std::vector<decltype(parts_)::iterator> ended;
  std::vector<std::string> owners;
  for (auto part = parts_.begin(); part != parts_.end(); ++part) {
    if (!(*part)->has_ended) continue;
    ended.push_back(part);
    owners.push_back(caller_of((*part)->user.credentials.uid));
  }
  for (const std::size_t index : surplus_of(owners, options_.keep_ended))
    parts_.erase(ended[index]);
}

}  // namespace accel::agent
