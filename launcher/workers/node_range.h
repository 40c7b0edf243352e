// NodeRange: how many nodes a job may have, as it is written: "4" or "2:4".
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

inline constexpr int kMostJobNodes = 100'000;

struct NodeRange {
  int least = 1;
  int most = 1;
};

// std::nullopt: it is no such text, or not 1 <= least <= most <= kMostJobNodes.
[[nodiscard]] std::optional<NodeRange> parse_node_range(std::string_view text);

// How a total of processes and the nodes it is for are said where the user reads them.
struct TotalWords {
  std::string total = "--num_processes";
  std::string nodes = "--nnodes 1";          // "--nnodes 2:4", or the file that says it
  std::string of_each = "--nproc_per_node";  // counts the processes of each node instead
};

// Of `total` processes on all nodes together, those of each.
// Errors  kUsage: a range of nodes; kInvalidArgument: it does not divide by them.
[[nodiscard]] Result<int> share_of_each_node(int total, NodeRange nodes, const TotalWords& words);

}  // namespace accel::launcher
