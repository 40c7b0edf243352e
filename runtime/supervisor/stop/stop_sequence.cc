#include "runtime/supervisor/stop/stop_sequence.h"

#include <algorithm>
#include <csignal>

namespace accel::supervisor {

using Kind = StopAction::Kind;

StopStyle style_of(StopMode mode) {
  switch (mode) {
    case StopMode::kInterrupt:
      return StopStyle::kSignal;
    case StopMode::kTerminate:
      return StopStyle::kNotify;
    case StopMode::kKill:
      break;
  }
  return StopStyle::kKill;
}

StopSequence::StopSequence(const StopPolicy& policy, StopStyle style, int signal, TimePoint now)
    : style_(style),
      signal_(signal),
      signal_at_(now + std::max(Duration::zero(), Duration(policy.grace) - kPreemptionReserve)),
      kill_at_(style == StopStyle::kKill ? now : now + policy.grace),
      dump_at_(policy.dump_stacks && style != StopStyle::kKill
                   ? kill_at_ - std::min<Duration>(policy.dump_wait, policy.grace / 2)
                   : TimePoint::max()),
      preempt_signal_(policy.preempt_signal),
      kill_wait_(policy.kill_wait) {}

TimePoint StopSequence::deadline() const noexcept {
  switch (phase_) {
    case Phase::kNew:
      return TimePoint::min();
    case Phase::kNotified:
      return std::min(signal_at_, kill_at_);
    case Phase::kSignalled:
      return std::min(dump_at_, kill_at_);
    case Phase::kDumped:
      return kill_at_;
    case Phase::kKilled:
      return kill_at_ + kill_wait_;
    case Phase::kGivenUp:
      break;
  }
  return TimePoint::max();
}

TimePoint StopSequence::next() const noexcept {
  return suspended_at_ == TimePoint::max() ? deadline() : TimePoint::max();
}

std::vector<StopAction> StopSequence::due(TimePoint now) {
  std::vector<StopAction> actions;
  while (next() <= now) {
    switch (phase_) {
      case Phase::kNew:
        phase_ = Phase::kSignalled;
        if (style_ == StopStyle::kKill) break;  // the next turn kills
        if (style_ == StopStyle::kNotify) {
          phase_ = Phase::kNotified;
          actions.push_back({Kind::kNotify, StopTarget::kEveryone, 0});
          actions.push_back({Kind::kSignal,
                             StopTarget::kNotPreemptible,
                             preempt_signal_ != 0 ? preempt_signal_ : signal_});
        } else {
          actions.push_back({Kind::kSignal, StopTarget::kEveryone, signal_});
        }
        break;
      case Phase::kNotified:
        phase_ = Phase::kSignalled;
        if (kill_at_ > now) {
          const bool is_for_all = preempt_signal_ != 0;
          actions.push_back({Kind::kSignal,
                             is_for_all ? StopTarget::kEveryone : StopTarget::kPreemptible,
                             signal_});
        }
        break;
      case Phase::kSignalled:
        if (style_ != StopStyle::kKill && dump_at_ < kill_at_) {
          phase_ = Phase::kDumped;
          actions.push_back({Kind::kDumpStacks, StopTarget::kEveryone, 0});
          break;
        }
        [[fallthrough]];
      case Phase::kDumped:
        phase_ = Phase::kKilled;
        actions.push_back({Kind::kSignal, StopTarget::kEveryone, SIGKILL});
        break;
      case Phase::kKilled:
        phase_ = Phase::kGivenUp;
        actions.push_back({Kind::kGiveUp, StopTarget::kEveryone, 0});
        break;
      case Phase::kGivenUp:
        break;
    }
  }
  return actions;
}

void StopSequence::shorten(TimePoint now, Duration grace) noexcept {
  if (has_killed()) return;
  kill_at_ = std::min(kill_at_, now + grace);
  signal_at_ = std::min(signal_at_, now + std::max(Duration::zero(), grace - kPreemptionReserve));
}

void StopSequence::escalate(TimePoint now) noexcept {
  resume(now);
  if (phase_ == Phase::kKilled || phase_ == Phase::kGivenUp) return;
  style_ = StopStyle::kKill;
  phase_ = Phase::kSignalled;
  kill_at_ = std::min(kill_at_, now);
  dump_at_ = TimePoint::max();
}

void StopSequence::suspend(TimePoint now) noexcept {
  if (suspended_at_ == TimePoint::max()) suspended_at_ = now;
}

void StopSequence::resume(TimePoint now) noexcept {
  if (suspended_at_ == TimePoint::max()) return;
  const Duration pause = now - suspended_at_;
  signal_at_ += pause;
  kill_at_ += pause;
  if (dump_at_ != TimePoint::max()) dump_at_ += pause;
  suspended_at_ = TimePoint::max();
}

}  // namespace accel::supervisor
