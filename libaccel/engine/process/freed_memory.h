// What a training step frees stays with the process for the next step.
//
// glibc gives a large block pages of its own, and the free top of its heap back to the kernel. Gradients and what an
// optimizer computes between are freed in every step, so each step takes those pages anew, and the kernel clears them:
// 34,000 page faults a step for a transformer of 19.2 M parameters, a tenth of its time.
#pragma once

#include <cstddef>

namespace accel {

inline constexpr std::size_t kLargestKeptBlock = std::size_t{32} << 20;  // what glibc allows
inline constexpr std::size_t kMostKeptFree = std::size_t{64} << 20;      // at the top of the heap

// Lets malloc() take blocks up to kLargestKeptBlock from the heap, and keep up to kMostKeptFree at its top, for the whole
// process. Whoever has set a threshold of malloc by the environment (MALLOC_TRIM_THRESHOLD_, MALLOC_MMAP_THRESHOLD_,
// MALLOC_TOP_PAD_, GLIBC_TUNABLES) keeps it; another malloc than glibc's is not concerned.
// Threads: any. Cost: none; up to kMostKeptFree bytes stay free at the top of the heap that would go back, and what is free
// below a block that is in use, as always in a heap.
void keep_freed_memory() noexcept;

// The opposite, where memory is short and a step waits for a disk anyway: what is free now, and blocks of kSmallestReturnedBlock or
// more once they are freed. Threads, and whoever has set a threshold: as above.
inline constexpr std::size_t kSmallestReturnedBlock = std::size_t{1} << 20;
void return_freed_memory() noexcept;

}  // namespace accel
