// What the supervisor does about the checks before a generation: see preflight.h.
//
//   begin_checks --first failure, or all passed--> sweep: nothing that a check started is left --> then
//        '--a stop, the lease's end, the owner's loss--> drop_checks: the sweep of the stop ends what runs

#include <utility>

#include "runtime/supervisor/shim/supervisor_impl.h"

namespace accel::supervisor {

void Supervisor::Impl::begin_checks(std::function<void(const Result<void>&)> then) {
  if (spec_.preflight.empty()) return then({});
  state_ = State::kChecking;
  after_checks_ = std::move(then);
  preflight_.emplace(
      context_, system_, spec_.preflight, services_.prepare_checks(), [this](Result<void> result) {
        end_checks(std::move(result));
      });
  preflight_->start();
}

void Supervisor::Impl::end_checks(Result<void> result) {
  preflight_.reset();
  check_result_ = std::move(result);
  sweep_.emplace(system_, scope_, spec_.stop.kill_wait);
  sweep_after_checks();
}

void Supervisor::Impl::sweep_after_checks() {
  while (true) {
    children_changed();
    if (!has_children()) break;
    const OrphanSweep::Step step = sweep_->step(clock_.now());
    if (step.verdict == OrphanSweep::Verdict::kClean) break;
    if (step.verdict == OrphanSweep::Verdict::kGaveUp) {
      give_up_on_strays();
      check_result_ = Error(ErrorCode::kPreflightFailed,
                            "a process of a preflight check did not end after SIGKILL");
      break;
    }
    if (step.wait != Duration::zero())
      return set_timer(clock_.now() + step.wait, &Impl::sweep_after_checks);
  }
  sweep_.reset();
  std::exchange(after_checks_, {})(std::exchange(check_result_, {}));
}

void Supervisor::Impl::drop_checks() {
  preflight_.reset();
  after_checks_ = {};
  cancel_timer();
}

}  // namespace accel::supervisor
