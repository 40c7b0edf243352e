// ReplicaShares: which elements of tensors that are the same on all ranks of a node each rank keeps.
//
// Copies of a model (DDP) and what their optimizers know are kept once a node in memory. If one rank copied all of it, the
// others would wait. So the tensors, one behind the other, are cut into as many ranges of bytes as the node has ranks.
//
// Threads:  pure functions; those that read tensors, the thread that trains.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/divided_tensors.h"

namespace accel::checkpoint {

struct Sharer {
  int place = 0;  // of this rank among those of its node
  int count = 1;
};

struct TensorSize {
  std::int64_t numel = 0;
  std::int64_t element_bytes = 1;
};

struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  friend bool operator==(const ElementRange&, const ElementRange&) = default;
};

// What a rank keeps of each tensor; those of all ranks of the node make the tensor. Shares differ by less than 32 elements.
[[nodiscard]] std::vector<ElementRange> shares_of(std::span<const TensorSize> tensors,
                                                  const Sharer& sharer);

// Whether a tensor can be kept in ranges of its elements.
[[nodiscard]] bool is_shareable(const at::Tensor& tensor);

// A hash of what the tensors are, and of a few elements of each: ranks that do not hold the same (that have stepped each for
// itself) are very likely to differ in it. Cost: one cache line a tensor.
[[nodiscard]] std::uint64_t sample_of(std::span<const at::Tensor> tensors);

// Notes in `divided` this rank's share of each. Requires: is_shareable().
void add_shares(std::span<const at::Tensor> tensors, const Sharer& sharer, DividedTensors& divided);

}  // namespace accel::checkpoint
