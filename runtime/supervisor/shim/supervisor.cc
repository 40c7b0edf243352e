// The state table is in the header. Everything that is decided is decided elsewhere, by values
// without effects: StopSequence (what to send when), decide_restart (whether again), describe_exit
// (why it ended). This file connects them with the event loop; one timer serves the state that is
// current.
//
// The shim is a subreaper: the kernel gives every orphan below it to it. So "no children" means "no
// descendants", and between two generations that is all there is to ask. When the job ends, /proc
// is searched for its tag as well.
//
// Ends are learned from SIGCHLD and peeked at before they are reaped: while a leader is a zombie
// its process group number cannot be reused, so what is left of the group can be killed by that
// number.

#include "runtime/supervisor/shim/supervisor.h"

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <limits>
#include <random>
#include <utility>

#include <boost/asio/post.hpp>

#include "runtime/supervisor/kernel/private_folder.h"
#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {

ErrorFileReader own_error_files() {
  constexpr std::size_t kMostBytes = 64 * 1024;
  return {.read = [](const std::string& path) { return read_own_file(path, kMostBytes); },
          .limit = std::chrono::seconds(2)};
}

// ---- running ----

void Supervisor::Impl::start() {
  if (auto ready = services_.start(); !ready) return refuse(ready.error());
  if (auto made = make_cgroup(); !made) return refuse(made.error());
  if (is_stop_asked_) {  // the owner went before it could hear of us
    begin_sweep();
  } else if (is_owner_driven()) {
    state_ = State::kParked;
  } else {
    start_generation();
  }
}

void Supervisor::Impl::start_generation() {
  generation_ = history_.total();
  forget_generation();
  begin_checks([this](const Result<void>& passed) {
    if (!passed) return refuse(passed.error());
    open_generation();
  });
}

void Supervisor::Impl::open_generation() {
  GenerationPlan plan = {.number = generation_, .restart_count = history_.total()};
  if (spec_.store.enabled) plan.store = spec_.store;
  if (auto ready = services_.begin_generation(std::move(plan)); !ready) {
    return refuse(ready.error());
  }
  run_generation();
}

void Supervisor::Impl::forget_generation() {
  record_.begin_generation(generation_);
  stop_.reset();
  sweep_.reset();
  is_linger_over_ = false;
  has_asked_descendants_ = false;
  hang_.reset();
  has_error_files_ = false;
  leftovers_.forget_all();
  group_.clear();
}

void Supervisor::Impl::run_generation() {
  state_ = State::kRunning;
  started_at_ = clock_.now();
  oom_kills_before_ = count_oom_kills(system_);
  if (cgroup_) cgroup_->begin_generation();
  start_workers();
  // From here on the owner takes a Ctrl-C for one that they have got too: they are in the terminal's group.
  GenerationStarted event{.generation = generation_, .store_port = services_.store_port()};
  for (const Worker& worker : group_.workers()) event.pids.push_back(worker.process->pid());
  send_(event);
  if (is_failed()) return stop_after_failure();
  begin_hang_watch();
}

void Supervisor::Impl::start_workers() {
  for (const WorkerSpec& worker : spec_.workers) {
    if (auto failure = start_worker(worker)) {
      record(*std::move(failure), clock_.now());
      return;
    }
  }
}

std::optional<WorkerExit> Supervisor::Impl::start_worker(const WorkerSpec& worker) {
  auto prepared = services_.prepare(worker);
  const int error_number = errno;
  if (!prepared) return never_started(worker, {prepared.error().message(), error_number});
  if (cgroup_) prepared->request.cgroup_fd = cgroup_->fd_of(worker.local_rank);
  return group_.start(worker, prepared->request);
}

void Supervisor::Impl::children_changed() {
  while (const auto ended = peek_ended_child()) {
    if (Worker* worker = group_.find(ended->pid)) {
      worker_ended(*worker, ended->is_success(), clock_.now());
    } else if (!preflight_ || !preflight_->take_end(ended->pid)) {
      (void)reap_child(ended->pid);
    }
  }
  while (const auto change = take_stop_change()) {
    if (Worker* worker = group_.find(change->pid)) {
      note_stopped(*worker, change->is_stopped, worker->is_traced);
    }
  }
  if (state_ == State::kStopping && is_stop_complete()) begin_sweep();
  if (state_ == State::kStopping && awaits_descendants()) ask_descendants();
  if (state_ == State::kLingering && !has_children()) begin_sweep();
}

void Supervisor::Impl::worker_ended(Worker& worker, bool succeeded, TimePoint seen_at) {
  if (!succeeded && !owner_stop_) {
    group_.kill_group(worker);
    kill_cgroup(worker);
  }
  const WorkerExit exit = record(group_.reap(worker, ran_out_of_memory(worker)), seen_at);
  await_tail(exit.local_rank);
  if (state_ != State::kRunning) return;
  if (exit.is_preempted(spec_.stop.requeue_exit_code)) {
    follow_preemption();
  } else if (exit.cause != ExitCause::kOk) {
    stop_after_failure();
  } else if (group_.num_alive() == 0) {
    begin_linger();
  } else {
    leftovers_.rank_ended(exit.local_rank, static_cast<pid_t>(exit.pid), clock_.now());
    watch_leftovers();
  }
}

const WorkerExit& Supervisor::Impl::record(WorkerExit exit, TimePoint seen_at) {
  if (exit.cause == ExitCause::kOutOfMemory && spec_.limits.memory_bytes > 0)
    exit.detail = "limit " + std::to_string(spec_.limits.memory_bytes >> 20) + " MiB";
  if (const auto step = services_.saved_step(exit.global_rank)) {
    exit.has_saved = true;
    exit.saved_step = *step;
  }
  const auto sample = services_.heartbeat(exit.global_rank);
  if (sample && sample->beats > 0) {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    exit.step = static_cast<std::int64_t>(std::min<std::uint64_t>(sample->beat.step, kMost));
  }
  const WorkerExit& recorded = record_.add(std::move(exit), seen_at, owner_stop_.has_value());
  send_(recorded);
  return recorded;
}

void Supervisor::Impl::await_tail(int local_rank) {
  ++tails_awaited_;
  services_.worker_ended(local_rank, [this, local_rank] {
    --tails_awaited_;
    record_.complete(local_rank, [this](WorkerExit& exit) {
      services_.fill_in_texts(exit);
      services_.pass_on_notices(exit.global_rank);
      services_.tell_step_times(exit.global_rank);
    });
    if (state_ == State::kDraining) conclude();
  });
}

// ---- sweeping and after ----

void Supervisor::Impl::begin_sweep() {
  state_ = State::kSweeping;
  cancel_timer();
  leftover_timer_.cancel();
  next_ = plan_next();
  expects_successor_ = has_successor();
  sweep_.emplace(
      system_, scope_, is_unkillable_ ? Duration::zero() : Duration(spec_.stop.kill_wait));
  boost::asio::post(timer_.get_executor(), [this] { run_sweep(); });
}

// The successor of this generation, if it gets one.
std::optional<RestartDecision> Supervisor::Impl::plan_next() {
  if (is_owner_driven() || owner_stop_ || !is_failed() || is_unkillable_) return std::nullopt;
  // Ctrl-C from a shared terminal reaches the worker before the owner's word reaches us.
  if (spec_.console.foreground && record_.first_failure()->signal == SIGINT) return std::nullopt;
  std::random_device random;
  const double jitter = static_cast<double>(random() % 1024) / 1024;
  const WorkerExit& failure = *record_.first_failure();
  GenerationFacts facts = {.cause = failure.cause,
                           .lived = clock_.now() - started_at_,
                           .made_progress = services_.made_progress()};
  // After a long life without a step nobody knows whether it came to the same place.
  if (failure.step >= 0 || facts.lived < spec_.restart.stable_after)
    facts.crash = crash_key(failure);
  const RestartDecision decision = decide_restart(spec_.restart, history_, facts, jitter);
  verdict_ = decision.verdict;
  if (verdict_ != RestartVerdict::kRestart) return std::nullopt;
  return decision;
}

void Supervisor::Impl::run_sweep() {
  while (true) {
    children_changed();
    if (expects_successor_ && !has_children()) return conclude();
    const OrphanSweep::Step step = sweep_->step(clock_.now());
    if (step.verdict == OrphanSweep::Verdict::kScanAgain) {
      if (step.wait == Duration::zero()) continue;
      return set_timer(clock_.now() + step.wait, &Impl::run_sweep);
    }
    if (step.verdict == OrphanSweep::Verdict::kGaveUp) give_up_on_strays();
    for (const std::string& text : sweep_->describe_unread())
      record_.add_notice(text + " could not be looked at: it may be of this job");
    return conclude();
  }
}

void Supervisor::Impl::give_up_on_strays() {
  is_unkillable_ = true;
  next_.reset();
  for (std::string& text : sweep_->describe_last_scan()) {
    record_.add_notice(text + " did not end after SIGKILL");
  }
  if (!is_owner_driven()) expects_successor_ = false;
}

// The last lines of all workers must be in: they are part of the report, and one may name a cause that
// makes another try pointless.
void Supervisor::Impl::conclude() {
  state_ = State::kDraining;
  if (tails_awaited_ > 0) return;
  if (next_) next_ = plan_next();
  // It is the end after all: search everything.
  if (expects_successor_ && !has_successor()) return begin_sweep();
  if (!next_ && !has_error_files_) return read_error_files();
  if (expects_successor_ && is_owner_driven()) return end_generation();
  if (!next_) {
    tell_why_it_ends();
    return finish();
  }
  history_ = next_->history;
  send_(Restarting{history_.total(), next_->delay, *record_.first_failure()});
  if (next_->delay == Milliseconds::zero()) return start_generation();
  state_ = State::kWaiting;
  set_timer(clock_.now() + next_->delay, &Impl::start_generation);
}

// Where the budget is not the reason, which everybody sees.
void Supervisor::Impl::tell_why_it_ends() {
  if (verdict_ == RestartVerdict::kNotWanted) {
    tell("no restart is wanted after a failure of this cause (restart.on_cause)");
  } else if (verdict_ == RestartVerdict::kSameCrash) {
    tell("the same failure " + std::to_string(spec_.restart.max_same_crash) +
         " times in a row: no more restarts (restart.max_same_cause)");
  }
}

void Supervisor::Impl::refuse(const Error& error) {
  close_with([this, error] { send_(Refused{error}); });
}

// Those that this generation's ranks may have written, read beside the loop: it serves the store and the owner.
void Supervisor::Impl::read_error_files() {
  std::vector<std::pair<int, std::string>> paths;
  for (const WorkerExit& exit : record_.exits()) {
    const std::string path = services_.error_file(exit.local_rank);
    if (!path.empty()) paths.emplace_back(exit.local_rank, path);
  }
  if (paths.empty()) return take_error_files({});
  set_timer(clock_.now() + error_file_reader_.limit, &Impl::leave_error_files);
  const auto read_all = [paths = std::move(paths), read = error_file_reader_.read] {
    std::vector<ErrorFile> files;
    for (const auto& [local_rank, path] : paths) files.push_back({local_rank, read(path)});
    return Result<std::vector<ErrorFile>>(std::move(files));
  };
  error_files_.emplace(context_.get_executor(),
                       read_all,
                       "the error files of the workers cannot be read",
                       [this](const Result<std::vector<ErrorFile>>& files) {
                         if (!files) record_.add_notice(files.error().message());
                         take_error_files(files ? *files : std::vector<ErrorFile>());
                       });
}

void Supervisor::Impl::take_error_files(const std::vector<ErrorFile>& files) {
  for (const ErrorFile& file : files) {
    record_.complete(file.local_rank,
                     [&file](WorkerExit& exit) { exit.error_file = file.content; });
  }
  has_error_files_ = true;
  cancel_timer();
  conclude();
}

void Supervisor::Impl::leave_error_files() {
  error_files_.reset();
  const std::string folder =
      std::filesystem::path(services_.error_file(record_.exits().front().local_rank)).parent_path();
  record_.add_notice("the error files of the workers were not read within " +
                     std::to_string(error_file_reader_.limit.count()) + " ms: the disk of '" +
                     folder + "' does not answer");
  take_error_files({});
}

void Supervisor::Impl::finish() {
  close_with([this] {
    send_(record_.outcome(owner_stop_, history_.total(), spec_.stop.requeue_exit_code));
  });
}

// Nothing is left to supervise but the way of the last output to its sinks; then `last_word`.
void Supervisor::Impl::close_with(std::function<void()> last_word) {
  state_ = State::kClosing;
  cancel_timer();
  last_word_ = std::move(last_word);
  drain_.emplace(spec_.stop.drain, clock_.now());
  if (is_in_hurry_) drain_->hurry(clock_.now());
  services_.begin_close([this] { watch_drain(); });
  watch_drain();
}

void Supervisor::Impl::watch_drain() {
  if (state_ != State::kClosing) return;
  const TimePoint now = clock_.now();
  const auto verdict = drain_->observe(services_.is_drained(), services_.drain_progress(), now);
  if (verdict == DrainWatch::Verdict::kWait) {
    return set_timer(drain_->next(now), &Impl::watch_drain);
  }
  state_ = State::kFinished;
  cancel_timer();
  services_.end_close(drain_->is_hurried() ? "before the job was left" : "in time");
  boost::asio::post(context_, [this] {  // behind the last notices
    last_word_();
    done_();
  });
}

// ---- requests ----

void Supervisor::Impl::handle(const HostRequest& request) {
  if (const auto* stop = std::get_if<Stop>(&request)) {
    stop_for_owner(*stop);
  } else if (std::holds_alternative<Suspend>(request)) {
    suspend();
  } else if (std::holds_alternative<Resume>(request)) {
    resume();
  } else if (std::holds_alternative<DumpStacks>(request)) {
    dump_stacks();
  } else if (const auto* size = std::get_if<WindowSize>(&request)) {
    services_.resize_window(size->rows, size->columns);
  } else if (std::holds_alternative<TakeSnapshot>(request)) {
    send_(snapshot());
  } else if (const auto* status = std::get_if<ShowStatus>(&request)) {
    services_.show_status(*status, [this](std::uint64_t number) { send_(StatusShown{number}); });
  } else if (!is_owner_driven()) {
    ++stale_requests_;  // of generations that are the shim's
  } else if (const auto* open_request = std::get_if<OpenStore>(&request)) {
    open_store(*open_request);
  } else if (const auto* prepare_request = std::get_if<PrepareGeneration>(&request)) {
    prepare(*prepare_request);
  } else if (const auto* start_request = std::get_if<StartGeneration>(&request)) {
    start_prepared(*start_request);
  } else if (const auto* stop_request = std::get_if<StopGeneration>(&request)) {
    stop_generation(*stop_request);
  } else if (const auto* renewal = std::get_if<RenewLease>(&request)) {
    renew_lease(*renewal);
  } else if (std::holds_alternative<Finish>(request)) {
    finish_job();
  }
}

void Supervisor::Impl::owner_lost(const std::string& why) {
  if (!why.empty() && state_ != State::kFinished) tell(why);
  stop_for_owner({.mode = StopMode::kKill});
}

// In the report, and to the user at once.
void Supervisor::Impl::tell(const std::string& text) {
  record_.add_notice(text);
  send_(Notice{text});
}

// A worker that uses libaccel writes its own stacks on top.
void Supervisor::Impl::dump_stacks() {
  services_.ask_for_stacks();
  for (const Worker& worker : group_.workers()) {
    if (worker.is_alive) send_(Notice{group_.describe(worker)});
  }
}

// SIGSTOP, because a SIGTSTP does nothing to process groups that have no shell above them.
void Supervisor::Impl::suspend() {
  is_suspended_ = true;
  if (stop_) stop_->suspend(clock_.now());
  hang_clock_.suspend(clock_.now());
  services_.suspend();
  signal_all(SIGSTOP);
}

void Supervisor::Impl::resume() {
  if (stop_) stop_->resume(clock_.now());
  hang_clock_.resume(clock_.now());
  services_.resume();
  is_suspended_ = false;
  signal_all(SIGCONT);
  if (state_ == State::kStopping) run_stop_sequence();
}

void Supervisor::Impl::signal_all(int signal) {
  for (Worker& worker : group_.workers()) group_.signal(worker, signal);
}

void Supervisor::Impl::set_timer(TimePoint when, void (Impl::*then)()) {
  timer_.expires_at(when);
  if (when == TimePoint::max()) return;
  timer_.async_wait([this, then](const boost::system::error_code& error) {
    if (!error) (this->*then)();
  });
}

Supervisor::Supervisor(boost::asio::io_context& context,
                       SupervisorOptions options,
                       std::function<void(const HostEvent&)> send,
                       std::function<void()> done)
    : impl_(std::make_unique<Impl>(context, std::move(options), std::move(send), std::move(done))) {
}

Supervisor::~Supervisor() = default;
void Supervisor::start() {
  impl_->start();
}
void Supervisor::handle(const HostRequest& request) {
  impl_->handle(request);
}
void Supervisor::owner_lost(const std::string& why) {
  impl_->owner_lost(why);
}
void Supervisor::children_changed() {
  impl_->children_changed();
}
Snapshot Supervisor::snapshot() const {
  return impl_->snapshot();
}

}  // namespace accel::supervisor
