// Where the calls of a submodule lie in a graph: a range from the first to the last node of each call. What export put between
// them (sizes, mostly) runs in it too.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "libaccel/exported/graph.h"

namespace accel::exported {

struct NodeRange {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// "model.layers.0", or "model.layers.0@1" for its second call. Throws kInvalidArgument when no node belongs to it.
[[nodiscard]] NodeRange range_of_call(const Graph& graph, const std::string& call_path);

// All calls of a module, in order; "" is the whole graph. Empty: none.
[[nodiscard]] std::vector<NodeRange> calls_of_module(const Graph& graph, const std::string& path);

}  // namespace accel::exported
