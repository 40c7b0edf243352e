// CpuAllocator: who gives tensors on the CPU their memory before LibTorch's allocator does.
//
// One allocator for the process stands before that of LibTorch, from the first stand_before_allocator() on and for good, and asks
// those who were added, from the last to the first. Whoever puts another allocator there afterwards takes their place.
//
// Threads:  any; nobody should allocate while the first one is added, as c10::SetCPUAllocator() asks.
// Source:   c10/core/CPUAllocator.h of LibTorch 2.11.
#pragma once

#include <cstddef>

#include <c10/core/Allocator.h>

namespace accel::interception {

class CpuMemory {
 public:
  virtual ~CpuMemory() = default;
  // A null pointer: those behind are asked.
  virtual at::DataPtr allocate(std::size_t bytes) = 0;
  // Of memory that raw_allocate(), which oneDNN calls, has given, by its address alone. Whether it was this one's.
  virtual bool free(void* memory) = 0;
};

// Adds it, for good.
void stand_before_allocator(CpuMemory& memory);

}  // namespace accel::interception
