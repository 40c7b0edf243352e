#include "libaccel/exported/calls/written_buffers.h"

#include <map>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>

#include "libaccel/exported/operator_table.h"

namespace accel::exported {
namespace {

// nullptr: it is no operator of LibTorch, or the program has put another one in its place.
const c10::FunctionSchema* schema_of(const std::string& target) {
  const auto name = operator_name(target);
  if (!name || custom_operator(name->name)) return nullptr;
  const auto found = c10::Dispatcher::singleton().findSchema(*name);
  return found ? &found->schema() : nullptr;
}

std::vector<ValueId> tensors_in(const Argument& argument) {
  if (const auto* const value = std::get_if<ValueArgument>(&argument)) return {value->id};
  if (const auto* const list = std::get_if<TensorList>(&argument)) return list->ids;
  return {};
}

// Follows the buffers through the nodes of a graph.
class BufferTrail {
 public:
  explicit BufferTrail(const ExportedGraph& graph) {
    for (const InputSpec& input : graph.inputs)
      if (input.kind == InputSpec::Kind::kBuffer || input.kind == InputSpec::Kind::kConstant)
        buffers_[input.id] = &input.target;
  }

  void pass(const Node& node) {
    const c10::FunctionSchema* const schema = schema_of(node.target);
    for (const NamedArgument& input : node.inputs) {
      for (const ValueId id : tensors_in(input.value)) {
        const auto buffer = buffers_.find(id);
        if (buffer != buffers_.end()) pass(node, schema, input.name, *buffer->second);
      }
    }
  }

  std::set<std::string> written;

 private:
  void pass(const Node& node,
            const c10::FunctionSchema* schema,
            const std::string& argument,
            const std::string& buffer) {
    const auto place = schema == nullptr ? std::nullopt : schema->argumentIndexWithName(argument);
    const c10::AliasInfo* const alias =
        place ? schema->arguments()[static_cast<std::size_t>(*place)].alias_info() : nullptr;
    if (place && alias == nullptr) return;  // it is read, and no part of a result
    if (!place || alias->isWrite()) written.insert(buffer);
    for (const NodeOutput& output : node.outputs)
      for (const ValueId id : output.ids) buffers_[id] = &buffer;
  }

  std::map<ValueId, const std::string*> buffers_;  // that a value shares memory with
};

}  // namespace

std::set<std::string> written_buffers(const ExportedGraph& graph) {
  BufferTrail trail(graph);
  for (const Node& node : graph.graph.nodes) trail.pass(node);
  for (const OutputSpec& output : graph.outputs)
    if (output.kind == OutputSpec::Kind::kBufferMutation) trail.written.insert(output.target);
  return trail.written;
}

}  // namespace accel::exported
