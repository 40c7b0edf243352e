// NodeRange: how many nodes a job may have, as it is written: "4" or "2:4".
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string_view>

namespace accel::launcher {

inline constexpr int kMostJobNodes = 100'000;

struct NodeRange {
  int least = 1;
  int most = 1;
};

// std::nullopt: it is no such text, or not 1 <= least <= most <= kMostJobNodes.
[[nodiscard]] std::optional<NodeRange> parse_node_range(std::string_view text);

}  // namespace accel::launcher
