#include "libaccel/planning/memory_ledger.h"

#include <numeric>
#include <utility>

#include <c10/core/TensorImpl.h>

namespace accel::planning {

struct MemoryLedger::Lease {
  std::shared_ptr<MemoryLedger> ledger;
  BlockId block;
  std::int64_t bytes;

  static void end(void* context) {
    const std::unique_ptr<Lease> lease(static_cast<Lease*>(context));
    lease->ledger->free(*lease);
  }
};

c10::DataPtr MemoryLedger::allocate(std::size_t bytes) {
  auto lease =
      std::make_unique<Lease>(Lease{shared_from_this(), 0, static_cast<std::int64_t>(bytes)});
  {
    const std::lock_guard lock(mutex_);
    lease->block = next_block_++;
    events_.push_back({lease->block, lease->bytes});
  }
  return {nullptr, lease.release(), &Lease::end, c10::Device(c10::kCPU)};
}

void MemoryLedger::use_for_a_moment(std::int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const BlockId block = next_block_++;
  events_.push_back({block, bytes});
  events_.push_back({block, -bytes});
}

void MemoryLedger::free(const Lease& lease) {
  const std::lock_guard lock(mutex_);
  events_.push_back({lease.block, -lease.bytes});
}

std::vector<MemoryEvent> MemoryLedger::events() const {
  const std::lock_guard lock(mutex_);
  return events_;
}

std::size_t MemoryLedger::num_events() const {
  const std::lock_guard lock(mutex_);
  return events_.size();
}

std::size_t MemoryLedger::num_blocks() const {
  const std::lock_guard lock(mutex_);
  return next_block_;
}

std::int64_t MemoryLedger::live_bytes() const {
  const std::lock_guard lock(mutex_);
  return std::accumulate(
      events_.begin(),
      events_.end(),
      std::int64_t{0},
      [](std::int64_t sum, const MemoryEvent& event) { return sum + event.bytes; });
}

const MemoryLedger::Lease* lease_of(const c10::TensorImpl& tensor) noexcept {
  if (!tensor.has_storage()) return nullptr;
  const c10::DataPtr& pointer = tensor.unsafe_storage().data_ptr();
  if (pointer.get_deleter() != &MemoryLedger::Lease::end) return nullptr;
  return static_cast<const MemoryLedger::Lease*>(pointer.get_context());
}

bool has_no_values(const c10::TensorImpl& tensor) noexcept {
  return lease_of(tensor) != nullptr;
}

BlockId block_of(const c10::TensorImpl& tensor) {
  return lease_of(tensor)->block;
}

}  // namespace accel::planning
