// PagingPolicy: which unit leaves when room is needed, and which are fetched ahead of their use.
//
// Pure decisions over a StepTrace. Before a step is known: the unit that was not used for the longest time leaves, and
// nothing is fetched ahead. Afterwards: the one whose next use is furthest away leaves (Belady's rule, which needs the
// fewest fills if the step repeats), one that the step does not use first of all; and a unit is fetched ahead only
// when nothing has to leave that is needed sooner.
//
// Threads:  pure.
// Source:   L. A. Belady, A study of replacement algorithms for a virtual-storage computer, IBM Systems Journal 5(2),
//           1966.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "libaccel/engine/pager/step_trace.h"

namespace accel::pager {

// Which of `evictable` leaves first; nullopt when there is none.
[[nodiscard]] std::optional<std::size_t> choose_victim(const StepTrace& trace,
                                                       std::span<const std::size_t> evictable);

// What the policy may know of the memory, in bytes.
struct RoomView {
  std::span<const std::size_t> unit_bytes;  // of each unit
  std::span<const std::size_t> evictable;   // resident and not in use
  std::size_t live_bytes = 0;
  std::size_t max_live_bytes = 0;
};

struct Prefetch {
  std::size_t unit = 0;
  std::vector<std::size_t> victims;  // to be evicted first, in this order
};

// The soonest of the next `depth` units that is not in memory (is_evicted), with what must leave for it. nullopt when
// all are there, or the room for it holds what is used sooner or is in use.
[[nodiscard]] std::optional<Prefetch> choose_prefetch(const StepTrace& trace,
                                                      const RoomView& room,
                                                      const std::vector<bool>& is_evicted,
                                                      std::size_t depth);

}  // namespace accel::pager
