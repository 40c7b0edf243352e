#include "libaccel/engine/remote/write_gate.h"

#include <accel/error.h>

namespace accel::sharding {

void WriteGate::close() {
  std::unique_lock lock(mutex_);
  is_closed_ = true;
  changed_.wait(lock, [this] { return num_inside_ == 0; });
}

void WriteGate::open() noexcept {
  const std::lock_guard lock(mutex_);
  is_closed_ = false;
}

void WriteGate::enter() {
  const std::lock_guard lock(mutex_);
  if (is_closed_)
    throw Error(ErrorCode::kUnsupported,
                "a parameter was used while the ranks write their shards",
                "use the model before or after optimizer.step(), not in between");
  ++num_inside_;
}

void WriteGate::leave() noexcept {
  const std::lock_guard lock(mutex_);
  if (--num_inside_ == 0) changed_.notify_all();
}

}  // namespace accel::sharding
