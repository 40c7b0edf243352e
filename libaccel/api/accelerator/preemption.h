// Preemption: lets all ranks end a run at the same step, once their supervisor asks for it.
//
// The ranks are asked at different moments, and one that saves alone waits for the others for ever. Ranks of one node agree
// through a word in their memory (stop_word.h), and nobody waits: the first one that was asked has all end at the boundary
// after the newest that any rank has reached.
//
// Others say at each boundary whether they have been asked; the answers meet in an all-reduce that is begun at one boundary and
// awaited at the next. What was true of any rank at boundary n is known to all at boundary n + 1, and they act there.
//
//   asked: rank 1, between boundaries 4 and 5      5: rank 1 says yes, the others no    6: all save
//
// Threads:  the thread that trains.
// Cost:     ranks of one node: a look at a word at each boundary. Of several nodes, or with Gloo: one all-reduce of 8 bytes,
//           which on Gloo runs beside the next step. One rank: nothing.
// Source:   docs/guides/preemption.md; tests/unit/libaccel/train/preemption_test.cc.
#pragma once

#include <functional>
#include <memory>

#include "libaccel/engine/process/process_group.h"
#include "libaccel/engine/process/supervisor_link.h"

namespace accel::detail {

// Whether the launcher has asked this process to make room.
[[nodiscard]] inline bool is_preemption_asked() noexcept {
  const WorkerChannel* const channel = supervisor_channel();
  return channel != nullptr && channel->requests().has(WorkerRequest::kPreempt);
}

class Preemption {
 public:
  // group: nullptr for a process alone.
  explicit Preemption(std::shared_ptr<ProcessGroup> group) : group_(std::move(group)) {}

  // Whether all ranks are to save and end here. Requires: every rank calls it at the same boundaries.
  // Errors  kPeerLost, kProcessGroup.
  [[nodiscard]] bool is_due(bool is_asked) {
    if (group_ == nullptr || group_->size() == 1) return is_asked;
    if (shm::StopWord* const word = group_->stop_word()) return word->reach(is_asked);
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
