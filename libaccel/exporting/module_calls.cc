#include "libaccel/exporting/module_calls.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

namespace accel::exporting {
namespace {

using exported::InputSpec;
using exported::kNoValue;
using exported::ModuleCall;
using exported::Node;
using exported::ValueId;

using Path = std::optional<std::string>;
using Parts = std::map<std::string, ModulePart>;

std::string parent_of(const std::string& path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string::npos ? "" : path.substr(0, dot);
}

bool is_within(const std::string& path, const std::string& module) {
  return module.empty() || path == module || path.starts_with(module + ".");
}

std::string innermost_around(std::string path, const std::string& other) {
  while (!is_within(other, path)) path = parent_of(path);
  return path;
}

std::vector<ValueId> tensors_into(const Node& node) {
  std::vector<ValueId> ids;
  for (const exported::NamedArgument& input : node.inputs) {
    if (const auto* value = std::get_if<exported::ValueArgument>(&input.value))
      ids.push_back(value->id);
    if (const auto* list = std::get_if<exported::TensorList>(&input.value))
      std::ranges::copy_if(
          list->ids, std::back_inserter(ids), [](ValueId id) { return id != kNoValue; });
  }
  return ids;
}

// Of each node that takes something of a module.
std::vector<Path> owners(const exported::ExportedGraph& graph) {
  std::map<ValueId, std::string>
      owner_of;  // of parameters, buffers and what is computed from those of one module
  for (const InputSpec& input : graph.inputs)
    if (input.kind == InputSpec::Kind::kParameter || input.kind == InputSpec::Kind::kBuffer)
      owner_of[input.id] = parent_of(input.target);
  std::vector<Path> owners;
  for (const Node& node : graph.graph.nodes) {
    Path owner;
    bool is_all = true;
    for (const ValueId id : tensors_into(node)) {
      const auto found = owner_of.find(id);
      is_all &= found != owner_of.end() && (!owner || *owner == found->second);
      if (found != owner_of.end())
        owner = owner ? innermost_around(*owner, found->second) : found->second;
    }
    if (owner && is_all)
      for (const exported::NodeOutput& output : node.outputs)
        for (const ValueId id : output.ids)
          if (id != kNoValue) owner_of[id] = *owner;
    owners.push_back(std::move(owner));
  }
  return owners;
}

// Of a node between one of `before` and one of `after`.
std::string between(const std::string& before, const std::string& after, const Parts& parts) {
  if (before != after) return innermost_around(before, after);
  // A layer of LibTorch that is called twice computes nothing between its own operators.
  const ModulePart& part = parts.at(before);
  return part.is_leaf && part.class_name.starts_with("torch.nn.") ? parent_of(before) : before;
}

std::vector<std::string> paths_of(const exported::ExportedGraph& graph, const Parts& parts) {
  const std::vector<Path> known = owners(graph);
  std::vector<std::string> paths(known.size());
  std::string before;
  for (std::size_t i = 0; i < known.size();) {
    std::size_t next = i;
    while (next < known.size() && !known[next]) ++next;
    const std::string after = next < known.size() ? *known[next] : "";
    for (; i < next; ++i) paths[i] = between(before, after, parts);
    if (i < known.size()) paths[i++] = before = after;
  }
  return paths;
}

// "a", "a.b" and "a.b.c" of "a.b.c", without those that are never called.
std::vector<std::string> modules_around(const std::string& path, const Parts& parts) {
  std::vector<std::string> modules;
  for (std::string at = path; !at.empty(); at = parent_of(at))
    if (!parts.at(at).is_container) modules.insert(modules.begin(), at);
  return modules;
}

}  // namespace

void add_module_calls(exported::ExportedGraph& graph, const Parts& parts) {
  const std::vector<std::string> paths = paths_of(graph, parts);
  std::map<std::string, int> num_calls;
  std::vector<ModuleCall> open;  // those that the node before was in, from the root inwards
  std::vector<std::string> open_paths;
  for (std::size_t i = 0; i < paths.size(); ++i) {
    const std::vector<std::string> around = modules_around(paths[i], parts);
    std::size_t same = 0;
    while (same < around.size() && same < open_paths.size() && around[same] == open_paths[same])
      ++same;
    open.resize(same);
    open_paths.resize(same);
    for (std::size_t j = same; j < around.size(); ++j) {
      const int call = num_calls[around[j]]++;
      open.push_back({.path = call == 0 ? around[j] : around[j] + "@" + std::to_string(call),
                      .class_name = parts.at(around[j]).class_name});
      open_paths.push_back(around[j]);
    }
    std::vector<ModuleCall>& calls = graph.graph.nodes[i].calls;
    calls.assign(1, {.path = "", .class_name = parts.at("").class_name});
    calls.insert(calls.end(), open.begin(), open.end());
  }
}

}  // namespace accel::exporting
