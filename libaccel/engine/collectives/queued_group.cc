#include "libaccel/engine/collectives/queued_group.h"

#include <utility>

namespace accel {

QueuedGroup::~QueuedGroup() {
  if (thread_->is_idle()) return;
  group_->abort();
  thread_->drain();
}

CommunicationThread::JobPtr QueuedGroup::begin(std::function<void(shm::ByteGroup&)> calls) {
  return thread_->begin([group = group_, calls = std::move(calls)] { calls(*group); });
}

}  // namespace accel
