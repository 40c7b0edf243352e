#include "libaccel/engine/shm/memory/buffer_location.h"

#include <algorithm>

namespace accel::shm {

bool has_location(const BufferLocation& location) noexcept {
  return location.where == BufferLocation::kInArena || location.address != 0;
}

bool are_reachable(std::span<const BufferLocation> locations) noexcept {
  return std::ranges::all_of(locations,
                             [](const BufferLocation& location) { return location.address != 0; });
}

bool is_refused(std::span<const BufferLocation> locations) noexcept {
  return std::ranges::any_of(locations, [](const BufferLocation& location) {
    return location.where == BufferLocation::kRefused;
  });
}

ReductionPath reduction_path(std::span<const BufferLocation> locations,
                             bool can_map_arenas) noexcept {
  const auto is_in_arena = [](const BufferLocation& location) {
    return location.where == BufferLocation::kInArena;
  };
  if (can_map_arenas && std::ranges::all_of(locations, is_in_arena))
    return ReductionPath::kInArenas;
  if (are_reachable(locations)) return ReductionPath::kStraight;
  return std::ranges::any_of(locations, has_location) ? ReductionPath::kAnew
                                                      : ReductionPath::kSlots;
}

}  // namespace accel::shm
