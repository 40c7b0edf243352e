// Place: where a rank has what it brings to a step, for others that come for it.
//
// It lies in shared memory, beside the call of the step. A rank that has a place sends no data through its slot at first.
//
// Threads:  values and pure functions.
#pragma once

#include <cstdint>
#include <span>

namespace accel::shm {

// All bytes zero: nowhere but in the slot.
struct Place {
  enum : std::uint32_t { kElsewhere, kInArena, kRefused };
  std::uint32_t where = kElsewhere;  // kRefused: the rank cannot do what the step asks
  std::uint64_t offset = 0;          // in its arena (arena.h)
  std::uint64_t address = 0;         // in its process; 0: not to be reached (peer_memory.h)
};

[[nodiscard]] bool has_place(const Place& place) noexcept;

// Whether each of them has an address.
[[nodiscard]] bool are_reachable(std::span<const Place> places) noexcept;

// Whether one of them cannot.
[[nodiscard]] bool is_refused(std::span<const Place> places) noexcept;

enum class Way {
  kSlots,     // all have sent their data
  kAnew,      // through the slots too, once those with a place have sent theirs
  kInArenas,  // reduced where it lies, in arenas that are mapped
  kStraight,  // reduced where it lies, by copies that the kernel makes
};

// How an all-reduce goes on when the ranks have these places: the same on all of them.
[[nodiscard]] Way way_of(std::span<const Place> places, bool can_map_arenas) noexcept;

}  // namespace accel::shm
