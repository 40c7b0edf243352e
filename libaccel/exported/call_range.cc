#include "libaccel/exported/call_range.h"

#include <algorithm>
#include <map>

#include <accel/error.h>

#include "libaccel/exported/module_tree.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

// By the paths of calls. is_wanted: of a call's path.
template <typename IsWanted>
std::map<std::string, NodeRange> call_ranges(const Graph& graph, const IsWanted& is_wanted) {
  std::map<std::string, NodeRange> ranges;
  for (std::size_t i = 0; i < graph.nodes.size(); ++i) {
    for (const ModuleCall& call : graph.nodes[i].calls) {
      if (!is_wanted(call.path)) continue;
      NodeRange& range = ranges.try_emplace(call.path, NodeRange{.begin = i}).first->second;
      range.end = i + 1;
    }
  }
  return ranges;
}

}  // namespace

NodeRange range_of_call(const Graph& graph, const std::string& call_path) {
  const auto ranges =
      call_ranges(graph, [&](const std::string& path) { return path == call_path; });
  if (ranges.empty())
    throw Error(
        ErrorCode::kInvalidArgument,
        "no node of the exported model belongs to the module '" + printable(call_path) + "'",
        "name a module as named_modules() does");
  return ranges.begin()->second;
}

ModuleCalls calls_of_module(const Graph& graph, const std::string& path) {
  ModuleCalls calls;
  for (const Node& node : graph.nodes) {
    const auto call = std::ranges::find(
        node.calls, path, [](const ModuleCall& one) { return module_path(one.path); });
    if (call == node.calls.end()) continue;
    calls.class_name = call->class_name;
    break;
  }
  if (path.empty()) {
    calls.ranges.push_back({.begin = 0, .end = graph.nodes.size()});
    return calls;
  }
  for (const auto& [call, range] :
       call_ranges(graph, [&](const std::string& call) { return module_path(call) == path; }))
    calls.ranges.push_back(range);
  std::ranges::sort(calls.ranges, {}, &NodeRange::begin);
  return calls;
}

}  // namespace accel::exported
