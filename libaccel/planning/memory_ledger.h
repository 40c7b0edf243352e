// MemoryLedger: what tensors without values would take, as a list of when which memory came and went.
//
// Its pointers are null and count: a storage that gets one has so many bytes until it is freed.
//
// Threads:  any; a lock.
// Cost:     16 bytes for each memory that comes, and as many for its end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include <c10/core/Allocator.h>

namespace c10 {
class TensorImpl;
}

namespace accel::planning {

using BlockId = std::uint32_t;

struct MemoryEvent {
  BlockId block = 0;
  std::int64_t bytes = 0;  // below 0: it goes
};

class MemoryLedger : public std::enable_shared_from_this<MemoryLedger> {
 public:
  // Of a storage on the CPU. Counts until the pointer is gone, also after the ledger's owner is.
  [[nodiscard]] c10::DataPtr allocate(std::size_t bytes);
  // Comes and goes.
  void use_for_a_moment(std::int64_t bytes);

  [[nodiscard]] std::vector<MemoryEvent> events() const;
  [[nodiscard]] std::size_t num_events() const;
  [[nodiscard]] std::size_t num_blocks() const;
  // Of what has come and not gone.
  [[nodiscard]] std::int64_t live_bytes() const;

 private:
  struct Lease;
  void free(const Lease& lease);

  mutable std::mutex mutex_;
  std::vector<MemoryEvent> events_;
  BlockId next_block_ = 0;

  friend bool has_no_values(const c10::TensorImpl& tensor) noexcept;
  friend const Lease* lease_of(const c10::TensorImpl& tensor) noexcept;
  friend BlockId block_of(const c10::TensorImpl& tensor);
};

// Whether the tensor lies in memory of a ledger.
[[nodiscard]] bool has_no_values(const c10::TensorImpl& tensor) noexcept;
// Requires: has_no_values(), and it has elements.
[[nodiscard]] BlockId block_of(const c10::TensorImpl& tensor);

}  // namespace accel::planning
