// CoreSet: the cores that a rank may run on, where the others of its group can see them.
//
// Whoever waits for a rank looks at its line for a while before it sleeps. That is a waste where the rank needs the waiter's
// core to come at all, and what each rank may use alone does not tell: ranks that are bound to a core each have one core
// each, and as many as there are ranks.
//
// Threads:  one rank writes its own before it joins; all read afterwards. Pure functions beside.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

namespace accel::shm {

// All bytes zero: not known.
struct CoreSet {
  std::array<std::atomic<std::uint64_t>, 16> words;  // of 64 cores each, as in cpu_set_t
};

// Those of the thread that calls; left as it is where the kernel does not say, as with more than 1024 cores.
void read_own_cores(CoreSet& cores) noexcept;

// Whether the ranks that could meet `rank` on a core have a core each, all together. True where a set is not known.
[[nodiscard]] bool has_core_of_its_own(std::span<const CoreSet* const> ranks, int rank) noexcept;

}  // namespace accel::shm
