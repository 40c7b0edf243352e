// MicroBatches: divides the micro-batches of a step over the ranks, in reproducible training (AcceleratorOptions::reproducible).
//
// The number of micro-batches in a step does not depend on the number of ranks. Each rank has a contiguous run of them:
//
//   8 micro-batches, 3 ranks:   |0 1|2 3 4|5 6 7|
//
// Threads:  values and a pure function.
#pragma once

#include <cstdint>

#include <accel/export.h>

namespace accel {

struct MicroBatches {
  std::int64_t total = 1;  // of a step, of all ranks
  std::int64_t begin = 0;  // this rank has [begin, end)
  std::int64_t end = 1;

  [[nodiscard]] std::int64_t size() const noexcept { return end - begin; }
};

// Rank r has [r * total / world_size, (r + 1) * total / world_size), rounded down. Throws kInvalidArgument when there are
// fewer micro-batches than ranks, and for an invalid rank.
[[nodiscard]] ACCEL_EXPORT MicroBatches micro_batches_of(std::int64_t total,
                                                         std::int64_t rank,
                                                         std::int64_t world_size);

}  // namespace accel
