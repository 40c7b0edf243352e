// MergeCount: what a merge has done.
#pragma once

#include <cstddef>
#include <cstdint>

namespace accel::launcher {

struct MergeCount {
  std::size_t tensors = 0;
  std::uint64_t bytes = 0;     // of tensors
  std::size_t peak_bytes = 0;  // of tensors that were in memory at one time
};

}  // namespace accel::launcher
