#include "libaccel/engine/pager/paging_policy.h"

#include <algorithm>
#include <limits>
#include <tuple>

namespace accel::pager {
namespace {

constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

// Larger leaves first.
auto eagerness(const StepTrace& trace, std::size_t unit) {
  const std::size_t distance = trace.is_known() ? trace.next_use(unit).value_or(kNever) : 0;
  return std::tuple(distance, std::numeric_limits<std::uint64_t>::max() - trace.last_use(unit));
}

}  // namespace

std::optional<std::size_t> choose_victim(const StepTrace& trace,
                                         std::span<const std::size_t> evictable) {
  const auto victim =
      std::max_element(evictable.begin(), evictable.end(), [&](std::size_t a, std::size_t b) {
        return eagerness(trace, a) < eagerness(trace, b);
      });
  if (victim == evictable.end()) return std::nullopt;
  return *victim;
}

std::optional<Prefetch> choose_prefetch(const StepTrace& trace,
                                        const RoomView& room,
                                        const std::vector<bool>& is_evicted,
                                        std::size_t depth) {
  for (const std::size_t unit : trace.upcoming(depth)) {
    if (!is_evicted[unit]) continue;
    Prefetch prefetch{unit, {}};
    std::vector<std::size_t> evictable(room.evictable.begin(), room.evictable.end());
    if (const auto current = trace.current()) std::erase(evictable, *current);
    std::size_t live = room.live_bytes;
    while (live + room.unit_bytes[unit] > room.max_live_bytes) {
      const auto victim = choose_victim(trace, evictable);
      if (!victim ||
          trace.next_use(*victim).value_or(kNever) <= trace.next_use(unit).value_or(kNever))
        return std::nullopt;
      live -= room.unit_bytes[*victim];
      prefetch.victims.push_back(*victim);
      std::erase(evictable, *victim);
    }
    return prefetch;
  }
  return std::nullopt;
}

}  // namespace accel::pager
