#include "libaccel/engine/shm/memory/place.h"

#include <algorithm>

namespace accel::shm {

bool has_place(const Place& place) noexcept {
  return place.where == Place::kInArena || place.address != 0;
}

bool are_reachable(std::span<const Place> places) noexcept {
  return std::ranges::all_of(places, [](const Place& place) { return place.address != 0; });
}

bool is_refused(std::span<const Place> places) noexcept {
  return std::ranges::any_of(places,
                             [](const Place& place) { return place.where == Place::kRefused; });
}

Way way_of(std::span<const Place> places, bool can_map_arenas) noexcept {
  const auto is_in_arena = [](const Place& place) { return place.where == Place::kInArena; };
  if (can_map_arenas && std::ranges::all_of(places, is_in_arena)) return Way::kInArenas;
  if (are_reachable(places)) return Way::kStraight;
  return std::ranges::any_of(places, has_place) ? Way::kAnew : Way::kSlots;
}

}  // namespace accel::shm
