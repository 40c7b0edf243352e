// DiskBuffers: how much of an optimizer's state on a disk is in memory at once. DiskStep takes it, and plans count it.
//
// Threads:  a value.
#pragma once

#include <cstddef>

namespace accel {

struct DiskBuffers {
  std::size_t num_buffers = 4;                       // in memory at once; at least 2
  std::size_t bucket_bytes = std::size_t{16} << 20;  // of state
};

}  // namespace accel
