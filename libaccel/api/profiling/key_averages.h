// The calls of a recording summed up by name (accel/profiler.h).
//
// Pure.
// Source:   EventList.key_averages() of PyTorch 2.11.
#pragma once

#include <cstdint>
#include <vector>

#include <accel/profiler.h>

#include "libaccel/api/profiling/operator_calls.h"

namespace accel::profiling {

// In the order of their first calls.
[[nodiscard]] std::vector<KeyAverage> averages_of(const std::vector<OperatorCall>& calls,
                                                  const KeyAveragesOptions& options);

// Which columns a table has besides times.
struct TableContent {
  bool has_memory = false;
  bool has_shapes = false;
  std::int64_t least_flops = 0;  // of a row that has any; 0: no column
};

}  // namespace accel::profiling
