// Preemption: lets all ranks end a run at the same step, once their supervisor asks for it.
//
// The ranks are asked at different moments, and one that saves alone waits for the others for ever. So
// at each boundary every rank says whether it has been asked; the answers meet in an all-reduce that is
// begun at one boundary and awaited at the next. What was true of any rank at boundary n is known to all
// at boundary n + 1, and they act there.
//
//   asked: rank 1, between boundaries 4 and 5      5: rank 1 brings yes, the others no    6: all save
//
// Threads:  the thread that trains.
// Cost:     several ranks: one all-reduce of 8 bytes per optimizer step. On Gloo it runs beside the next
//           step; through shared memory, whose collectives run on the caller's thread, the ranks wait for
//           the last one at each boundary. One rank: nothing.
// Source:   docs/preemption.md; tests/unit/libaccel/train/preemption_test.cc.
#pragma once

#include <functional>
#include <memory>

#include "libaccel/process/process_group.h"

namespace accel::detail {

class Preemption {
 public:
  // group: nullptr for a process alone.
  explicit Preemption(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Whether all ranks are to save and end here. Requires: every rank calls it at the same boundaries.
  // Errors  kPeerLost, kProcessGroup.
  [[nodiscard]] bool is_due(bool is_asked) {
    if (group_ == nullptr || group_->size() == 1) return is_asked;
    // All ranks know the same here, so none begins what the others will not join.
    if (verdict_ && verdict_()) return true;
    verdict_ = group_->begin_any(is_asked, "preemption");
    return false;
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::function<bool()> verdict_;  // on the boundary before; empty at the first
};

}  // namespace accel::detail
