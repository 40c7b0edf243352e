// Parts of a graph. A value is a weight when it is a parameter, or is made of parameters alone: a transposed one, one in another
// dtype. A part begins at each node that uses a weight, so what a part reads of the disk is what one operator does. Where weights are
// made of others, the part goes on to the next operator that uses a weight: what was made for one call is gone before it is made for
// the next one.

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>

#include <ATen/core/grad_mode.h>

#include <accel/error.h>
#include <accel/exported_calls.h>

#include "libaccel/exported/calls/written_buffers.h"
#include "libaccel/exported/loaded_model.h"
#include "runtime/printable.h"

namespace accel {
namespace {

using exported::ExportedGraph;
using exported::InputSpec;
using exported::Node;
using exported::ValueId;

// Of the tensors of a node: how many are weights, and how many are not.
struct NodeOperands {
  std::size_t num_weights = 0;
  std::size_t num_others = 0;
};

NodeOperands weights_among(const Node& node, const std::set<ValueId>& weights) {
  NodeOperands operands;
  const auto count = [&](ValueId id) {
    ++(weights.contains(id) ? operands.num_weights : operands.num_others);
  };
  for (const exported::NamedArgument& input : node.inputs) {
    if (const auto* const value = std::get_if<exported::ValueArgument>(&input.value))
      count(value->id);
    if (const auto* const list = std::get_if<exported::TensorList>(&input.value))
      std::ranges::for_each(list->ids, count);
  }
  return operands;
}

std::vector<std::size_t> cuts_of(const ExportedGraph& graph) {
  std::set<ValueId> weights;
  for (const InputSpec& input : graph.inputs)
    if (input.kind == InputSpec::Kind::kParameter) weights.insert(input.id);
  std::vector<std::size_t> cuts = {0};
  bool awaits_user = false;  // a weight has been made in this part
  for (std::size_t i = 0; i < graph.graph.nodes.size(); ++i) {
    const Node& node = graph.graph.nodes[i];
    const NodeOperands operands = weights_among(node, weights);
    if (operands.num_weights == 0) continue;
    if (!awaits_user && cuts.back() != i) cuts.push_back(i);
    awaits_user = operands.num_others == 0;
    if (!awaits_user) continue;
    for (const exported::NodeOutput& output : node.outputs)
      weights.insert(output.ids.begin(), output.ids.end());
  }
  cuts.push_back(graph.graph.nodes.size());
  return cuts;
}

constexpr const char* kHowToMakeStates =
    "give each call a state of its own, as ExportedCalls::new_state() makes it";

void check_has_all(const ExportedState& state, const std::vector<std::string>& written) {
  for (const std::string& name : written) {
    const auto found = state.find(name);
    if (found != state.end() && found->second.defined()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "the state of a call of an exported model lacks the buffer " + printable(name) +
                    ", which the graph writes",
                kHowToMakeStates);
  }
}

// own: what calls without a state write.
void check_states(const std::vector<ExportedCall>& calls,
                  const std::vector<std::string>& written,
                  const ExportedState& own) {
  std::map<const void*, std::size_t> writers;  // the call, by the memory
  for (std::size_t i = 0; i < calls.size(); ++i) {
    const ExportedState& state = calls[i].state == nullptr ? own : *calls[i].state;
    check_has_all(state, written);
    for (const std::string& name : written) {
      const at::Tensor& buffer = state.at(name);
      const void* const memory = buffer.has_storage() ? buffer.storage().data() : nullptr;
      if (memory == nullptr || writers.try_emplace(memory, i).first->second == i) continue;
      throw Error(ErrorCode::kInvalidArgument,
                  "two calls of an exported model side by side write the same memory, the later "
                  "one as " +
                      printable(name),
                  kHowToMakeStates);
    }
  }
}

}  // namespace

ExportedCalls::ExportedCalls(const ExportedModelImpl& model)
    : graph_(&model.model_->graph(model.is_training())), cuts_(cuts_of(graph_->source())) {
  const std::set<std::string> written = exported::written_buffers(graph_->source());
  written_.assign(written.begin(), written.end());
}

ExportedState ExportedCalls::own_state() const {
  ExportedState state;
  for (const std::string& name : written_) state[name] = graph_->stored(name);
  return state;
}

ExportedState ExportedCalls::new_state() const {
  const at::NoGradGuard no_grad;
  ExportedState state = own_state();
  for (auto& [name, buffer] : state) buffer = buffer.clone();
  return state;
}

std::vector<ExportedOutputs> ExportedCalls::operator()(
    const std::vector<ExportedCall>& calls) const {
  if (graph_->has_hooks())
    throw Error(ErrorCode::kUnsupported,
                "calls of an exported model side by side run no hooks, and a submodule has one",
                "remove it with remove_hook_from_submodules(), or call the model itself");
  check_states(calls, written_, own_state());
  const ExportedState none;
  const auto state_of = [&](const ExportedCall& call) -> const ExportedState& {
    return call.state == nullptr ? none : *call.state;
  };
  std::vector<std::vector<c10::IValue>> inputs;
  std::vector<exported::Frame> frames;
  for (const ExportedCall& call : calls) {
    inputs.push_back(graph_->in_order(call.inputs));
    graph_->check(inputs.back());
    frames.push_back(graph_->frame_of(inputs.back(), state_of(call)));
  }
  for (std::size_t part = 0; part + 1 < cuts_.size(); ++part)
    for (exported::Frame& frame : frames)
      graph_->program().run(frame, cuts_[part], cuts_[part + 1]);
  std::vector<ExportedOutputs> outputs;
  for (std::size_t i = 0; i < calls.size(); ++i)
    outputs.push_back(graph_->results_of(frames[i], inputs[i], state_of(calls[i])));
  return outputs;
}

}  // namespace accel
