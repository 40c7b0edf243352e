// NodeLayout: which ranks are on which node.
//
// Threads:  a pure value.
#pragma once

#include <string>
#include <vector>

namespace accel {

struct NodeLayout {
  // The ranks of each node, ascending; nodes by their first rank.
  std::vector<std::vector<int>> nodes;

  [[nodiscard]] int num_nodes() const noexcept { return static_cast<int>(nodes.size()); }
  // Whether every node has as many ranks.
  [[nodiscard]] bool is_even() const noexcept;
  // The node of a rank. Requires: it is on one.
  [[nodiscard]] int node_of(int rank) const;
  // Its place among the ranks of its node.
  [[nodiscard]] int place_of(int rank) const;
  // That of some ranks, numbered anew in this order.
  [[nodiscard]] NodeLayout among(const std::vector<int>& ranks) const;

  friend bool operator==(const NodeLayout&, const NodeLayout&) = default;
};

// locations[r]: where rank r is; ranks of the same words are on one node.
[[nodiscard]] NodeLayout layout_of(const std::vector<std::string>& locations);

// "2 nodes with 2 ranks each", "2 nodes with 1 and 2 ranks".
[[nodiscard]] std::string to_text(const NodeLayout& layout);

}  // namespace accel
