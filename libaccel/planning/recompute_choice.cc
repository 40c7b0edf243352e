#include "libaccel/planning/recompute_choice.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

namespace accel::planning {
namespace {

// Ways of the regions so far, as a list from the last one on that choices share.
struct Chosen {
  std::size_t way;
  std::shared_ptr<const Chosen> before;
};

struct Partial {
  std::int64_t held = 0;  // of its regions
  std::int64_t peak = 0;
  double flops = 0;
  std::shared_ptr<const Chosen> chosen;
};

// Rising bytes, falling operations.
void drop_beaten(std::vector<Partial>& all) {
  std::ranges::sort(
      all, {}, [](const Partial& one) { return std::tuple(one.held, one.flops, one.peak); });
  std::vector<Partial> left;
  for (Partial& one : all)
    if (left.empty() || one.flops < left.back().flops) left.push_back(std::move(one));
  all = std::move(left);
}

// Held bytes rounded up to the same step beat one another more often.
void thin_out(std::vector<Partial>& all, std::int64_t budget) {
  std::int64_t step = std::max<std::int64_t>(1, budget / static_cast<std::int64_t>(kMostPartial));
  while (all.size() > kMostPartial) {
    for (Partial& one : all) one.held = std::min(budget, (one.held + step - 1) / step * step);
    drop_beaten(all);
    step *= 2;
  }
}

std::vector<Partial> with_region(const std::vector<Partial>& before,
                                 const std::vector<RegionWay>& ways,
                                 std::int64_t budget) {
  std::vector<Partial> after;
  for (const Partial& one : before) {
    for (std::size_t way = 0; way < ways.size(); ++way) {
      const std::int64_t held = one.held + ways[way].held;
      const std::int64_t peak = std::max({one.peak, held, one.held + ways[way].in_backward});
      if (peak > budget) continue;
      after.push_back({held,
                       peak,
                       one.flops + ways[way].flops,
                       std::make_shared<const Chosen>(Chosen{way, one.chosen})});
    }
  }
  drop_beaten(after);
  thin_out(after, budget);
  return after;
}

}  // namespace

std::optional<RecomputeChoice> choose_recomputed(const std::vector<std::vector<RegionWay>>& regions,
                                                 std::int64_t budget) {
  std::vector<Partial> partial = {{}};
  for (const std::vector<RegionWay>& ways : regions) partial = with_region(partial, ways, budget);
  if (partial.empty() || budget < 0) return std::nullopt;
  const Partial& best = partial.back();
  RecomputeChoice choice{{}, best.peak, best.flops};
  for (const Chosen* one = best.chosen.get(); one != nullptr; one = one->before.get())
    choice.ways.push_back(one->way);
  std::ranges::reverse(choice.ways);
  return choice;
}

}  // namespace accel::planning
