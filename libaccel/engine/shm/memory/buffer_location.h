// BufferLocation: where a rank has what it brings to a step, for others that come for it.
//
// It lies in shared memory, beside the call of the step. A rank with a location sends no data through its slot at first.
//
// Threads:  values and pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace accel::shm {

// All bytes zero: nowhere but in the slot.
struct BufferLocation {
  enum : std::uint32_t { kElsewhere, kInArena, kRefused };
  std::uint32_t where = kElsewhere;  // kRefused: the rank cannot do what the step asks
  std::uint64_t offset = 0;          // in its arena (arena.h)
  std::uint64_t address = 0;         // in its process; 0: not to be reached (peer_memory.h)
};

[[nodiscard]] bool has_location(const BufferLocation& location) noexcept;

// Whether each of them has an address.
[[nodiscard]] bool are_reachable(std::span<const BufferLocation> locations) noexcept;

// Whether one of them cannot.
[[nodiscard]] bool is_refused(std::span<const BufferLocation> locations) noexcept;

enum class ReductionPath {
  kSlots,     // all have sent their data
  kAnew,      // through the slots too, once those with a location have sent theirs
  kInArenas,  // reduced where it lies, in arenas that are mapped
  kStraight,  // reduced where it lies, by copies that the kernel makes
};

// How an all-reduce goes on when the ranks have these locations: the same on all of them.
[[nodiscard]] ReductionPath reduction_path(std::span<const BufferLocation> locations,
                                           bool can_map_arenas) noexcept;

}  // namespace accel::shm
