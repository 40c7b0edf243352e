// CopySpace: the memory into which a save in the background copies what it is to write.
//
// Kept from save to save: fresh memory costs about as much as the copy itself, and the thread that trains waits for both. Copies may
// also be left to others (interception/state_staging.h), who find their places here.
//
// Cost:     the bytes of the largest save of this rank, from the first one on, until release().
// Threads:  one at a time; the copies may be read and dropped by any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel::checkpoint {

class CopySpace {
 public:
  // Puts a copy of each tensor into its place. Memory that earlier copies still use is left to them.
  void replace_by_copies(const std::vector<at::Tensor*>& tensors);
  // The same, but for tensors that may wait: those get their place, and what is returned says what is to be copied there. `waits` is
  // asked for tensors alone whose copies are plain bytes.
  struct Place {
    std::size_t index;  // into tensors
    at::Tensor from;
    at::Tensor to;
  };
  using Waits = std::function<bool(const at::Tensor&)>;
  [[nodiscard]] std::vector<Place> replace_by_places(const std::vector<at::Tensor*>& tensors,
                                                     const Waits& waits);
  // Gives the memory back when the last copy is gone.
  void release() { memory_.reset(); }
  [[nodiscard]] std::uint64_t bytes() const { return memory_.defined() ? memory_.nbytes() : 0; }

 private:
  void make_room(std::uint64_t bytes);

  at::Tensor memory_;  // [bytes] uint8
};

}  // namespace accel::checkpoint
