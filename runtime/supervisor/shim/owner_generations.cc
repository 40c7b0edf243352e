// Generations that the owner drives: its requests, and what it is told.
//
// With several nodes no shim can know whether a generation may start or must be followed: another
// node's failure is none of its events. So the owner prepares a generation here and on the other
// nodes, starts it once all of them are ready, and hears of its end; in between the shim is parked.
// A request of another generation than the current one has been overtaken on its way: it is counted
// and changes nothing.

#include <algorithm>
#include <string>
#include <utility>

#include <boost/asio/post.hpp>

#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {
namespace {

constexpr int kMaxPort = 65535;

Error owner_bug(std::string what) {
  return Error(ErrorCode::kInvalidArgument, std::move(what), "this is a bug of the owner");
}

bool is_port(int port) {
  return port >= 0 && port <= kMaxPort;
}

}  // namespace

Result<void> Supervisor::Impl::check(const PrepareGeneration& wanted) const {
  const std::string name = "generation " + std::to_string(wanted.generation);
  if (state_ != State::kParked && state_ != State::kPrepared) {
    return owner_bug(name + " cannot be prepared: generation " + std::to_string(generation_) +
                     " has not ended");
  }
  if (is_unkillable_) {
    return Error(ErrorCode::kWorkerUnkillable,
                 name + " cannot be prepared: a process of generation " +
                     std::to_string(generation_) + " did not end after SIGKILL");
  }
  const int num_workers = static_cast<int>(spec_.workers.size());
  if (wanted.first_rank < 0 || wanted.world_size < 1 ||
      wanted.first_rank > wanted.world_size - num_workers) {
    return owner_bug(name + ": " + std::to_string(num_workers) + " workers from rank " +
                     std::to_string(wanted.first_rank) + " on do not fit a world of " +
                     std::to_string(wanted.world_size));
  }
  if (wanted.node_rank < 0 || wanted.node_rank >= wanted.num_nodes) {
    return owner_bug(name + ": node " + std::to_string(wanted.node_rank) + " of " +
                     std::to_string(wanted.num_nodes));
  }
  if (wanted.restart_count < 0) return owner_bug(name + ": the number of restarts is negative");
  if (!is_port(wanted.port)) return owner_bug(name + ": port " + std::to_string(wanted.port));
  return {};
}

void Supervisor::Impl::open_store(const OpenStore& wanted) {
  const bool is_overtaken = wanted.generation < num_ended_ || wanted.generation < generation_;
  if (is_overtaken) {
    ++stale_requests_;
    return;
  }
  const std::string name = "the store of generation " + std::to_string(wanted.generation);
  const auto fail = [&](Error error) { send_(PrepareFailed{wanted.generation, std::move(error)}); };
  if (state_ != State::kParked) return fail(owner_bug(name + ": another generation is under way"));
  if (!is_port(wanted.port)) return fail(owner_bug(name + ": port " + std::to_string(wanted.port)));
  opened_store_.reset();
  auto opened = services_.open_store({.bind_address = wanted.bind_address,
                                      .port = static_cast<std::uint16_t>(wanted.port),
                                      .exact_port = wanted.is_exact_port,
                                      .members = wanted.members});
  if (!opened) return fail(std::move(opened).error().while_doing("opening " + name));
  opened_store_ = wanted.generation;
  send_(StoreOpened{wanted.generation, services_.store_port()});
}

void Supervisor::Impl::prepare(const PrepareGeneration& wanted) {
  const bool is_overtaken = wanted.generation < num_ended_ || wanted.generation < generation_;
  if (is_overtaken) {
    ++stale_requests_;
    return;
  }
  if (auto possible = check(wanted); !possible) {
    return send_(PrepareFailed{wanted.generation, possible.error()});
  }
  state_ = State::kParked;
  generation_ = wanted.generation;
  history_.restarts = wanted.restart_count;
  spec_.identity.world_size = wanted.world_size;
  spec_.identity.local_world_size = static_cast<int>(spec_.workers.size());
  spec_.identity.node_rank = wanted.node_rank;
  spec_.identity.num_nodes = wanted.num_nodes;
  for (WorkerSpec& worker : spec_.workers) {
    worker.global_rank = wanted.first_rank + worker.local_rank;
  }
  services_.renumber(wanted.first_rank);
  forget_generation();
  begin_lease(wanted.lease_until);  // it may end while the checks run
  begin_checks([this, wanted](const Result<void>& passed) {
    state_ = State::kParked;
    if (passed) return bind(wanted);
    end_lease();
    send_(PrepareFailed{generation_, passed.error()});
  });
}

void Supervisor::Impl::bind(const PrepareGeneration& wanted) {
  GenerationPlan plan = {.number = generation_, .restart_count = wanted.restart_count};
  plan.keeps_store = wanted.hosts_store && opened_store_ == wanted.generation;
  if (spec_.store.enabled && wanted.hosts_store && !plan.keeps_store) {
    plan.store = StorePolicy{.bind_address = wanted.bind_address,
                             .port = static_cast<std::uint16_t>(wanted.port),
                             .exact_port = wanted.is_exact_port,
                             .members = wanted.members};
  }
  if (auto ready = services_.begin_generation(std::move(plan)); !ready) {
    end_lease();
    return send_(PrepareFailed{generation_, ready.error()});
  }
  state_ = State::kPrepared;
  watch_lease();
  if (state_ != State::kPrepared) return;  // it was over before it began
  send_(Prepared{generation_, services_.store_port()});
}

void Supervisor::Impl::start_prepared(const StartGeneration& wanted) {
  if (state_ != State::kPrepared || wanted.generation != generation_) {
    ++stale_requests_;
    return;
  }
  // Here too: a shim that was stopped finds the request before its timer.
  if (lease_.is_over(boot_time())) return enforce_lease();
  const int port = is_port(wanted.master_port) ? wanted.master_port : 0;
  services_.use_store_at(wanted.master_addr, static_cast<std::uint16_t>(port));
  run_generation();
}

void Supervisor::Impl::stop_generation(const StopGeneration& wanted) {
  if (wanted.generation != generation_ || state_ == State::kParked) {
    ++stale_requests_;
    return;
  }
  const Stop stop = {.mode = wanted.mode};
  StopPolicy policy = spec_.stop;
  if (wanted.grace >= Milliseconds::zero()) policy.grace = wanted.grace;
  switch (state_) {
    case State::kChecking:
      drop_checks();
      begin_sweep();
      break;
    case State::kPrepared:
      services_.end_generation();
      end_generation();
      break;
    case State::kRunning:
      owner_stop_ = stop;
      begin_stop(style_of(stop.mode), first_signal(stop), policy);
      break;
    case State::kStopping:
      if (stop.mode == StopMode::kKill) {
        stop_->escalate(clock_.now());
      } else if (wanted.grace >= Milliseconds::zero()) {
        stop_->shorten(clock_.now(), wanted.grace);
      }
      run_stop_sequence();
      break;
    case State::kLingering:
      begin_sweep();
      break;
    default:
      break;  // it is ending
  }
}

void Supervisor::Impl::finish_job() {
  is_job_ending_ = true;
  if (state_ == State::kChecking) drop_checks();
  const bool is_idle =
      state_ == State::kChecking || state_ == State::kParked || state_ == State::kPrepared;
  if (is_idle) begin_sweep();
}

void Supervisor::Impl::end_generation() {
  state_ = State::kParked;
  cancel_timer();
  end_lease();
  GenerationEnded ended = {
      .generation = generation_,
      .outcome = record_.outcome(owner_stop_, history_.total(), spec_.stop.requeue_exit_code),
      .is_clean = !is_unkillable_,
      .made_progress = services_.made_progress()};
  num_ended_ = generation_ + 1;
  owner_stop_.reset();
  boost::asio::post(context_, [this, ended = std::move(ended)] {  // behind the last notices
    send_(ended);
  });
}

bool Supervisor::Impl::has_successor() const {
  return is_owner_driven() ? !is_job_ending_ : next_.has_value();
}

Snapshot Supervisor::Impl::snapshot() const {
  constexpr const char* kStates[] = {"idle",
                                     "checking",
                                     "parked",
                                     "prepared",
                                     "running",
                                     "stopping",
                                     "lingering",
                                     "sweeping",
                                     "draining",
                                     "waiting",
                                     "closing",
                                     "finished"};
  static_assert(std::size(kStates) == static_cast<std::size_t>(State::kFinished) + 1);
  Snapshot snapshot = {.job_id = spec_.job_id,
                       .state = kStates[static_cast<std::size_t>(state_)],
                       .generation = generation_,
                       .store_port = services_.store_port(),
                       .stale_requests = stale_requests_,
                       .lease_until = lease_.until(),
                       .is_stop_asked = is_stop_asked_};
  const auto now = clock_.now().time_since_epoch();
  for (const Worker& worker : group_.workers()) {
    WorkerSnapshot shown = {.local_rank = worker.spec->local_rank,
                            .global_rank = worker.spec->global_rank,
                            .pid = worker.process->pid(),
                            .is_alive = worker.is_alive};
    if (const auto sample = services_.heartbeat(shown.global_rank)) {
      shown.beats = sample->beats;
      shown.step = sample->beat.step;
      shown.samples = sample->beat.samples;
      shown.phase = static_cast<int>(sample->beat.phase);
      // The worker writes the time; it may be anything.
      const auto beaten_at = std::chrono::nanoseconds(
          std::min(sample->monotonic_ns, static_cast<std::uint64_t>(now.count())));
      shown.silent_for = std::chrono::duration_cast<std::chrono::milliseconds>(now - beaten_at);
    }
    shown.times = services_.step_times(shown.global_rank).value_or(StepTimes{});
    snapshot.workers.push_back(std::move(shown));
  }
  for (WorkerExit exit : record_.exits()) {
    for (std::string* text : {&exit.tail, &exit.error_file, &exit.last_error}) text->clear();
    snapshot.exits.push_back(std::move(exit));
  }
  return snapshot;
}

}  // namespace accel::supervisor
