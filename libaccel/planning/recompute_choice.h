// RecomputeChoice: of which regions of a forward activations are kept, so that they fit into a budget with the fewest operations
// more.
//
// Each region has several ways to treat it: keep all, keep what is expensive, keep its inputs alone. Regions come in the order of
// the forward. While the backward is at a region, what is held of the regions before it is there, and all of its own:
//
//   most bytes = max( sum of held, over regions i: held of the regions before i + in_backward of i )
//
// The choice is exact: of all partial choices with equal regions behind them, those are kept that no other one beats in bytes and
// in operations. Equal layers have few such; where more than `kMostPartial` are left, held bytes are rounded up, so the choice fits
// all the same and may take more operations than needed.
//
// Threads:  pure.
// Cost:     regions x ways x partial choices.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace accel::planning {

inline constexpr std::size_t kMostPartial = 4096;

// One way to treat a region.
struct RegionWay {
  std::int64_t held = 0;         // bytes, from its forward to its backward
  std::int64_t in_backward = 0;  // bytes of its own while its backward runs, `held` among them
  double flops = 0;              // beside those of the step
};

struct RecomputeChoice {
  std::vector<std::size_t> ways;  // of each region
  std::int64_t peak = 0;          // bytes, by the formula above
  double flops = 0;
};

// nullopt: no choice fits. Of equally many operations the one that holds least. Requires: each region has a way.
[[nodiscard]] std::optional<RecomputeChoice> choose_recomputed(
    const std::vector<std::vector<RegionWay>>& regions, std::int64_t budget);

}  // namespace accel::planning
