// Where the calls of a submodule lie in a graph: a range from the first to the last node of each call. What export put between
// them (sizes, mostly) runs in it too. Graphs within the graph (torch.no_grad(), torch.autocast(), torch.cond()) are one node.
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

struct ModuleCalls {
  std::vector<NodeRange> ranges;  // in order; empty: the graph does not call it
  std::string class_name;         // in Python
};

// All calls of a module; "" is the whole graph.
[[nodiscard]] ModuleCalls calls_of_module(const Graph& graph, const std::string& path);

}  // namespace accel::exported
