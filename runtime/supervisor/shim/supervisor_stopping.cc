// How a supervisor ends its workers: what StopSequence says is carried out here, and who lingers after them.

#include <csignal>
#include <utility>

#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {
namespace {

// Most stops are over by then, and nobody needs to hear of them.
constexpr std::chrono::milliseconds kSilentStop{900};
constexpr std::chrono::milliseconds kSilentWaitForDescendants{400};

}  // namespace

// ---- stopping ----

// A rank has saved for a preemption that it heard of before us (SLURM signals every process): the others are asked.
void Supervisor::Impl::follow_preemption() {
  owner_stop_ = Stop{.mode = StopMode::kTerminate, .signal = SIGTERM};
  if (!is_owner_driven()) is_job_ending_ = true;
  begin_stop(style_of(StopMode::kTerminate), spec_.stop.signal, spec_.stop);
}

void Supervisor::Impl::stop_after_failure() {
  record_.note_early_returns();
  begin_stop(StopStyle::kSignal, spec_.stop.signal, spec_.stop);
}

void Supervisor::Impl::stop_for_owner(const Stop& stop) {
  const bool is_past_running =
      state_ == State::kSweeping || state_ == State::kDraining || state_ == State::kClosing;
  const bool is_settled = is_past_running && !expects_successor_;  // how it ended
  is_in_hurry_ = is_in_hurry_ || is_settled || is_stop_asked_ || stop.mode == StopMode::kKill;
  if (state_ == State::kClosing) {
    drain_->hurry(clock_.now());
    return watch_drain();
  }
  if (is_settled) return;
  const bool is_first = !std::exchange(is_stop_asked_, true);
  if (is_first) owner_stop_ = stop;
  is_job_ending_ = true;
  StopPolicy policy = spec_.stop;
  if (stop.grace >= Milliseconds::zero()) policy.grace = stop.grace;
  switch (state_) {
    case State::kRunning:
      begin_stop(style_of(stop.mode), first_signal(stop), policy);
      break;
    case State::kStopping:
      if (stop.mode == StopMode::kKill || !is_first) {
        stop_->escalate(clock_.now());
      } else {
        if (stop.grace >= Milliseconds::zero()) stop_->shorten(clock_.now(), stop.grace);
        tell_of_wait(kSilentStop);
      }
      run_stop_sequence();
      break;
    case State::kChecking:
      drop_checks();
      begin_sweep();
      break;
    case State::kLingering:
    case State::kParked:
    case State::kPrepared:
      begin_sweep();
      break;
    case State::kWaiting:
      next_.reset();
      conclude();
      break;
    case State::kIdle:
    case State::kSweeping:
    case State::kDraining:
    case State::kClosing:
    case State::kFinished:
      break;
  }
}

// 0 when the terminal has given it to these workers already, and not to those before them.
int Supervisor::Impl::first_signal(const Stop& stop) const {
  if (stop.mode != StopMode::kInterrupt) return spec_.stop.signal;
  return stop.delivered_to == generation_ ? 0 : SIGINT;
}

void Supervisor::Impl::begin_stop(StopStyle style, int signal, const StopPolicy& policy) {
  state_ = State::kStopping;
  stop_.emplace(policy, style, signal, clock_.now());
  leftover_timer_.cancel();
  if (owner_stop_) tell_of_wait(kSilentStop);
  run_stop_sequence();
}

void Supervisor::Impl::run_stop_sequence() {
  for (const StopAction& action : stop_->due(clock_.now())) apply(action);
  if (state_ != State::kStopping) return;
  if (is_stop_complete()) return begin_sweep();
  set_timer(stop_->next(), &Impl::run_stop_sequence);
}

void Supervisor::Impl::apply(const StopAction& action) {
  switch (action.kind) {
    case StopAction::Kind::kNotify:
      services_.ask_for_preemption();
      break;
    case StopAction::Kind::kSignal:
      if (action.signal == SIGKILL && awaits_descendants()) {
        for (Leftover& leftover : name_descendants()) record_.add_leftover(std::move(leftover));
      }
      if (spec_.console.stop_by_input && action.signal != SIGKILL) return services_.end_inputs();
      for (Worker& worker : group_.workers()) {
        if (!is_target(worker, action.target)) continue;
        if (action.signal != 0) group_.signal(worker, action.signal);
        if (action.signal != SIGKILL) {
          group_.signal(worker, SIGCONT);
        } else {
          kill_cgroup(worker);
        }
      }
      break;
    case StopAction::Kind::kDumpStacks:
      tell("the grace is nearly over: stacks of what still runs follow");
      write_all_stacks();
      break;
    case StopAction::Kind::kGiveUp:
      give_up_on_workers();
      break;
  }
}

bool Supervisor::Impl::is_target(const Worker& worker, StopTarget target) const {
  if (target == StopTarget::kEveryone) return true;
  const bool handles_preemption = services_.handles_preemption(worker.spec->global_rank);
  return handles_preemption == (target == StopTarget::kPreemptible);
}

void Supervisor::Impl::give_up_on_workers() {
  is_unkillable_ = true;
  for (Worker& worker : group_.workers()) {
    if (!worker.is_alive) continue;
    record(unkillable(worker), clock_.now());
  }
  begin_sweep();
}

// After a failure the job wants its successor or its end: descendants are swept at once. When the
// owner asked, what the workers started has the same grace as they.
bool Supervisor::Impl::is_stop_complete() const {
  const bool has_grace = owner_stop_ && !stop_->has_killed();
  return group_.num_alive() == 0 && (!has_grace || !has_children());
}

// ---- what outlives its rank while the job stops ----

bool Supervisor::Impl::awaits_descendants() const {
  return owner_stop_ && group_.num_alive() == 0 && has_children();
}

// Once, and not before the ranks have ended: they may need it to save.
void Supervisor::Impl::ask_descendants() {
  if (stop_->has_killed() || std::exchange(has_asked_descendants_, true)) return;
  for (const ProcessEntry& stray : find_strays(system_, scope_, read_process_table(system_))) {
    if (was_signalled(stray)) continue;
    signal_stray(system_, stray, SIGTERM);
    signal_stray(system_, stray, SIGCONT);
  }
  tell_of_wait(kSilentWaitForDescendants);
}

// A second signal would end one that saves because of the first.
bool Supervisor::Impl::was_signalled(const ProcessEntry& descendant) const {
  for (const Worker& worker : group_.workers()) {
    if (worker.owns_group && worker.process && worker.process->pid() == descendant.group)
      return true;
  }
  return owner_stop_->delivered_to == generation_ && descendant.group == owner_group_;
}

// Says for whom the stop waits, if it still does after `patience`.
void Supervisor::Impl::tell_of_wait(Duration patience) {
  leftover_timer_.expires_after(patience);
  leftover_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || state_ != State::kStopping || stop_->has_killed()) return;
    const StopWait wait = describe_wait();
    if (!wait.ranks.empty() || !wait.descendants.empty()) send_(Notice{describe(wait)});
  });
}

StopWait Supervisor::Impl::describe_wait() const {
  StopWait wait;
  for (const Worker& worker : group_.workers()) {
    if (worker.is_alive) wait.ranks.push_back(worker.spec->global_rank);
  }
  if (wait.ranks.empty()) wait.descendants = name_descendants();
  wait.left = stop_->kill_time() - clock_.now();
  wait.until = std::chrono::system_clock::now() +
               std::chrono::duration_cast<std::chrono::system_clock::duration>(wait.left);
  wait.is_interrupt = owner_stop_->mode == StopMode::kInterrupt;
  return wait;
}

std::vector<Leftover> Supervisor::Impl::name_descendants() const {
  std::vector<Leftover> named;
  for (const ProcessEntry& stray : find_strays(system_, scope_, read_process_table(system_))) {
    named.push_back({stray.pid, read_command(system_, stray)});
  }
  return named;
}

// ---- lingering ----

void Supervisor::Impl::begin_linger() {
  state_ = State::kLingering;
  if (!has_children()) return begin_sweep();
  set_timer(clock_.now() + spec_.stop.linger, &Impl::end_linger);
}

void Supervisor::Impl::end_linger() {
  if (std::exchange(is_linger_over_, true)) return begin_sweep();
  for (const ProcessEntry& stray : find_strays(system_, scope_, read_process_table(system_))) {
    record_.add_leftover({stray.pid, read_command(system_, stray)});
    signal_stray(system_, stray, SIGTERM);
    signal_stray(system_, stray, SIGCONT);
  }
  set_timer(clock_.now() + spec_.stop.kill_wait, &Impl::end_linger);
}

void Supervisor::Impl::watch_leftovers() {
  leftover_timer_.expires_at(leftovers_.next());
  if (leftovers_.next() == TimePoint::max()) return;
  leftover_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || (state_ != State::kRunning && state_ != State::kLingering)) return;
    for (Leftover& leftover : leftovers_.step(clock_.now(), group_.live_pids())) {
      record_.add_leftover(std::move(leftover));
    }
    watch_leftovers();
  });
}

}  // namespace accel::supervisor
