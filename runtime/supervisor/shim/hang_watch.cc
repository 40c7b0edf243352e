// What the supervisor does about time: it looks at the workers' reports twice a second, passes on their
// notices, tells of workers that are stopped, and when one hangs takes the stacks of all ranks before it stops them.

#include <chrono>
#include <string>
#include <utility>

#include "runtime/supervisor/kernel/thread_stacks.h"
#include "runtime/supervisor/shim/supervisor_impl.h"
#include "runtime/supervisor/watch/call_comparison.h"
#include "runtime/text/seconds_text.h"

namespace accel::supervisor {
namespace {

constexpr std::chrono::milliseconds kLookEvery{500};

}  // namespace

void Supervisor::Impl::begin_hang_watch() {
  if (spec_.hang.mode == HangMode::kOff) return;
  hang_clock_.restart(clock_.now());
  look_at_reports();
}

void Supervisor::Impl::look_at_reports() {
  hang_timer_.expires_after(kLookEvery);
  hang_timer_.async_wait([this](const boost::system::error_code& error) {
    if (error || state_ != State::kRunning || hang_) return;
    if (!is_suspended_) judge_reports();
    if (state_ == State::kRunning && !hang_) look_at_reports();
  });
}

void Supervisor::Impl::judge_reports() {
  std::vector<RankReport> reports;
  for (Worker& worker : group_.workers()) {
    if (!worker.is_alive) continue;
    // A debugger's stop is told to the debugger alone; /proc tells us.
    const auto entry = read_process(system_, worker.process->pid());
    const bool is_traced = entry && entry->state == 't';
    if (is_traced != worker.is_traced) note_stopped(worker, worker.is_stopped, is_traced);
    RankReport report = {.global_rank = worker.spec->global_rank,
                         .is_stopped = worker.is_stopped || worker.is_traced};
    if (const auto sample = services_.heartbeat(report.global_rank)) {
      report.beats = sample->beats;
      report.step = sample->beat.step;
      report.is_training = sample->beat.phase == WorkerPhase::kTraining ||
                           sample->beat.phase == WorkerPhase::kUnknown;
    }
    reports.push_back(report);
    services_.pass_on_notices(report.global_rank);
  }
  const auto hang = hang_clock_.observe(clock_.now(), reports);
  for (const SlowRank& slow : hang_clock_.take_slow_ranks()) {
    using std::chrono::duration_cast;
    send_(Straggler{.generation = generation_,
                    .global_rank = slow.global_rank,
                    .step_time = duration_cast<Milliseconds>(slow.step_time),
                    .median = duration_cast<Milliseconds>(slow.median),
                    .score = slow.score});
  }
  if (hang) begin_hang(*hang);
}

void Supervisor::Impl::begin_hang(const Hang& hang) {
  hang_ = hang;
  using std::chrono::duration_cast;
  send_(Hung{.generation = generation_,
             .global_rank = hang.global_rank,
             .step = hang.step,
             .silent_for = duration_cast<Milliseconds>(hang.silent_for),
             .limit = duration_cast<Milliseconds>(hang.limit),
             .silent_ranks = hang.silent_ranks});
  tell("rank " + std::to_string(hang.global_rank) + " has made no progress for " +
       seconds_text(hang.silent_for) + " (limit " + seconds_text(hang.limit) + "), at step " +
       std::to_string(hang.step) + "; " + std::to_string(hang.silent_ranks.size()) + " of " +
       std::to_string(group_.num_alive()) + " ranks are silent");
  call_difference_ = call_difference(services_.calls()).value_or("");
  if (!call_difference_.empty()) tell(call_difference_);
  write_all_stacks();
  set_timer(clock_.now() + spec_.hang.dump_wait, &Impl::stop_after_hang);
}

void Supervisor::Impl::write_all_stacks() {
  services_.ask_for_stacks();
  for (const Worker& worker : group_.workers()) {
    if (!worker.is_alive) continue;
    const std::string stacks = read_thread_stacks(system_, worker.process->pid());
    services_.write_stacks(worker.spec->local_rank, stacks);
    send_(Notice{group_.describe(worker)});
  }
}

void Supervisor::Impl::stop_after_hang() {
  if (state_ != State::kRunning) return;
  record_.note_hang(hang_->global_rank,
                    "no progress for " + seconds_text(hang_->silent_for) + " after step " +
                        std::to_string(hang_->step) + ", limit " + seconds_text(hang_->limit) +
                        (call_difference_.empty() ? "" : "; " + call_difference_));
  stop_after_failure();
}

void Supervisor::Impl::note_stopped(Worker& worker, bool is_stopped, bool is_traced) {
  const bool is_news = is_stopped != worker.is_stopped || is_traced != worker.is_traced;
  worker.is_stopped = is_stopped;
  worker.is_traced = is_traced;
  // Ctrl-Z and the stop sequence are our own doing.
  if (!is_news || is_suspended_ || state_ != State::kRunning) return;
  send_(WorkerStopped{.global_rank = worker.spec->global_rank,
                      .pid = worker.process->pid(),
                      .is_stopped = is_stopped || is_traced,
                      .is_traced = is_traced});
}

}  // namespace accel::supervisor
