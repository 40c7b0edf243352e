// A forward: the module's tensors and the caller's go into a frame, the program runs over it, and what the graph returns comes
// out of it. Tensors that the graph returns as new values of buffers are copied into them at the end, as Python does.

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/scalar_tensor.h>

#include <accel/error.h>

#include "libaccel/exported/constants.h"
#include "libaccel/exported/graph_reader.h"
#include "libaccel/exported/loaded_model.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"

namespace accel::exported {
namespace {

at::Tensor output_tensor(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor();
  if (value.isNone()) return {};
  if (value.isInt() || value.isDouble() || value.isBool())
    return at::scalar_tensor(value.toScalar(),
                             value.isInt()      ? at::kLong
                             : value.isDouble() ? at::kDouble
                                                : at::kBool);
  throw Error(ErrorCode::kUnsupported,
              "the exported model returns a " + value.tagKind(),
              "return tensors, in tuples or dicts of any depth");
}

}  // namespace

BoundGraph::BoundGraph(ExportedGraph graph, std::string source)
    : graph_(std::move(graph)), program_(graph_.graph, source), source_(std::move(source)) {
  std::vector<InputCheck::Input> checked;
  for (const InputSpec& input : graph_.inputs) {
    if (input.kind != InputSpec::Kind::kUser) continue;
    user_values_.push_back(input.id);
    const auto shape = graph_.graph.input_shapes.find(input.id);
    checked.push_back(
        {input.target, shape == graph_.graph.input_shapes.end() ? nullptr : &shape->second});
  }
  check_.emplace(checked, graph_.ranges);
}

void BoundGraph::bind(const std::map<std::string, TensorPlace>& places,
                      const TensorsByName& constants) {
  for (const InputSpec& input : graph_.inputs) {
    TensorInput tensor{.value = input.id, .name = input.target};
    if (input.kind == InputSpec::Kind::kParameter || input.kind == InputSpec::Kind::kBuffer) {
      const auto found = places.find(input.target);
      if (found == places.end())
        throw damaged_export("its graph takes " + printable(input.target) +
                             ", which has no values");
      tensor.place = found->second;
      places_.insert(*found);
    } else if (input.kind == InputSpec::Kind::kConstant) {
      const auto found = constants.find(input.target);
      if (found == constants.end())
        throw damaged_export("its constant " + printable(input.target) + " has no value");
      tensor.constant = found->second;
    } else {
      continue;
    }
    if (program_.is_used(input.id)) tensors_.push_back(std::move(tensor));
  }
  if (code_) code_->bind(places, constants);
}

void BoundGraph::use_code(const CompiledPackage& package, CompiledUse use) {
  code_ = std::make_unique<CompiledGraph>(package, graph_, source_, use);
}

void BoundGraph::move_constants(const at::TensorOptions& options, bool non_blocking) {
  for (TensorInput& tensor : tensors_) {
    if (tensor.place) continue;
    const at::TensorOptions now = tensor.constant.options();
    const bool converts = options.has_dtype() && tensor.constant.is_floating_point();
    tensor.constant =
        tensor.constant.to(now.device(options.has_device() ? options.device() : now.device())
                               .dtype(converts ? c10::typeMetaToScalarType(options.dtype())
                                               : tensor.constant.scalar_type()),
                           non_blocking);
  }
}

const InputSpec& BoundGraph::user_input(const std::string& name) const {
  const auto is_it = [&](const InputSpec& input) {
    return input.kind == InputSpec::Kind::kUser && input.target == name;
  };
  const auto found = std::ranges::find_if(graph_.inputs, is_it);
  if (found != graph_.inputs.end()) return *found;
  throw Error(
      ErrorCode::kInvalidArgument,
      "there is no input " + printable(name) + ", but " + printable(joined(input_names(), ", ")));
}

std::optional<at::ScalarType> BoundGraph::input_dtype(const std::string& name) const {
  const auto shape = graph_.graph.input_shapes.find(user_input(name).id);
  return shape == graph_.graph.input_shapes.end() ? std::nullopt
                                                  : scalar_type_of(shape->second.dtype);
}

std::vector<std::int64_t> BoundGraph::sizes_of(ValueId input) const {
  std::vector<std::int64_t> sizes;
  const auto shape = graph_.graph.input_shapes.find(input);
  if (shape == graph_.graph.input_shapes.end()) return sizes;
  for (const Dimension& dimension : shape->second.sizes) {
    const auto* const number = std::get_if<std::int64_t>(&dimension);
    sizes.push_back(number == nullptr ? -1 : *number);
  }
  return sizes;
}

std::vector<std::int64_t> BoundGraph::input_sizes(const std::string& name) const {
  return sizes_of(user_input(name).id);
}

// The input goes into the table itself, or through operators that only give it another shape or type.
std::int64_t BoundGraph::index_limit(const std::string& name) const {
  static const std::set<std::string> kSameNumbers = {"torch.ops.aten.view.default",
                                                     "torch.ops.aten.reshape.default",
                                                     "torch.ops.aten.contiguous.default",
                                                     "torch.ops.aten.to.dtype",
                                                     "torch.ops.aten.to.device",
                                                     "torch.ops.aten._to_copy.default"};
  const auto id_of = [](const NamedArgument& argument) {
    const auto* const value = std::get_if<ValueArgument>(&argument.value);
    return value == nullptr ? kNoValue : value->id;
  };
  std::set<ValueId> same = {user_input(name).id};
  for (const Node& node : graph_.graph.nodes) {
    if (node.inputs.empty()) continue;
    if (node.target == "torch.ops.aten.embedding.default" && node.inputs.size() > 1 &&
        same.contains(id_of(node.inputs[1]))) {
      const std::vector<std::int64_t> table = sizes_of(id_of(node.inputs[0]));
      if (!table.empty()) return table.front();
    }
    if (!kSameNumbers.contains(node.target) || !same.contains(id_of(node.inputs[0]))) continue;
    for (const NodeOutput& output : node.outputs) same.insert(output.ids.begin(), output.ids.end());
  }
  return -1;
}

std::vector<std::string> BoundGraph::input_names() const {
  std::vector<std::string> names;
  for (const InputSpec& input : graph_.inputs)
    if (input.kind == InputSpec::Kind::kUser) names.push_back(input.target);
  return names;
}

std::vector<std::string> BoundGraph::output_names() const {
  std::vector<std::string> names;
  for (const OutputSpec& output : graph_.outputs)
    if (output.kind == OutputSpec::Kind::kUser) names.push_back(output.target);
  return names;
}

std::vector<c10::IValue> BoundGraph::in_order(const ExportedInputs& inputs) const {
  const std::vector<std::string> names = input_names();
  std::vector<c10::IValue> values(names.size());
  for (const auto& [name, value] : inputs.values) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found != names.end()) {
      values[static_cast<std::size_t>(found - names.begin())] = value;
      continue;
    }
    const bool is_fixed =
        std::any_of(graph_.inputs.begin(), graph_.inputs.end(), [&name = name](const auto& input) {
          return input.kind == InputSpec::Kind::kFixed && input.target == name;
        });
    const bool is_none = value.isNone() || (value.isTensor() && !value.toTensor().defined());
    if (is_fixed && is_none) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "the exported model has no input '" + printable(name) + "'" +
                    (is_fixed ? ": it was exported with a constant in its place" : "") +
                    "; it takes " + printable(joined(names, ", ")),
                is_fixed ? "export the model with a tensor for it" : "name one of its inputs");
  }
  return values;
}

void BoundGraph::load_tensors(Frame& frame, const TensorsByName& instead) const {
  for (const TensorInput& tensor : tensors_) {
    const auto other = instead.find(tensor.name);
    frame[tensor.value] = other != instead.end() ? other->second
                          : tensor.place         ? tensor.place->tensor()
                                                 : tensor.constant;
  }
}

const at::Tensor& BoundGraph::stored(const std::string& name) const {
  const auto found = std::ranges::find(tensors_, name, &TensorInput::name);
  const bool is_constant = found != tensors_.end() && !found->place;
  return is_constant ? found->constant : places_.at(name).tensor();
}

void BoundGraph::set_hook(const ModuleCalls& calls,
                          const std::shared_ptr<const HookedModule>& module,
                          const std::shared_ptr<ModelHook>& hook) {
  std::vector<HookedCall> hooked;
  for (const NodeRange& range : calls.ranges) {
    HookedCall call{.range = range,
                    .inputs = values_into(range.begin, range.end),
                    .outputs = module->path.empty()
                                   ? user_outputs()
                                   : program_.values_out_of(range.begin, range.end),
                    .module = module,
                    .hook = hook};
    for (const std::size_t id : call.inputs)
      call.is_used_later.push_back(program_.is_used_from(static_cast<ValueId>(id), range.end));
    hooked.push_back(std::move(call));
  }
  hooked_.set(std::move(hooked), module->path);
}

std::vector<std::size_t> BoundGraph::user_outputs() const {
  std::vector<std::size_t> values;
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    const auto* const value = std::get_if<ValueArgument>(&graph_.graph.outputs[i]);
    const bool is_new = value != nullptr && std::ranges::find(values, value->id) == values.end();
    if (is_new && graph_.outputs[i].kind == OutputSpec::Kind::kUser) values.push_back(value->id);
  }
  return values;
}

std::vector<std::size_t> BoundGraph::values_into(std::size_t begin, std::size_t end) const {
  std::vector<std::size_t> values;
  for (const ValueId id : user_values_)
    if (program_.uses(id, begin, end)) values.push_back(id);
  for (const std::size_t id : program_.values_into(begin, end)) values.push_back(id);
  return values;
}

void BoundGraph::run_nodes(Frame& frame, std::size_t begin, std::size_t end) const {
  if (hooked_.empty()) {
    program_.run(frame, begin, end);
  } else {
    hooked_.run(program_, frame, begin, end);
  }
}

c10::IValue BoundGraph::output_value(std::size_t output, const Frame& frame) const {
  const Argument& argument = graph_.graph.outputs[output];
  if (const auto* value = std::get_if<ValueArgument>(&argument)) return frame[value->id];
  return constant_of(argument).value_or(c10::IValue());
}

void BoundGraph::write_back(const Frame& frame,
                            const std::vector<c10::IValue>& inputs,
                            const TensorsByName& instead) const {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    const OutputSpec& output = graph_.outputs[i];
    if (output.kind == OutputSpec::Kind::kUser) continue;
    const at::Tensor value = output_value(i, frame).toTensor();
    if (output.kind != OutputSpec::Kind::kInputMutation) {
      const bool is_buffer = output.kind == OutputSpec::Kind::kBufferMutation;
      const auto other = is_buffer ? instead.find(output.target) : instead.end();
      const at::Tensor& target =
          other != instead.end() ? other->second : places_.at(output.target).tensor();
      target.copy_(value);
      continue;
    }
    const std::vector<std::string> names = input_names();
    const auto found = std::find(names.begin(), names.end(), output.target);
    if (found == names.end()) continue;
    inputs[static_cast<std::size_t>(found - names.begin())].toTensor().copy_(value);
  }
}

void BoundGraph::check(const std::vector<c10::IValue>& inputs) const {
  if (inputs.size() != user_values_.size())
    throw Error(ErrorCode::kInvalidArgument,
                "the exported model takes " + std::to_string(user_values_.size()) + " inputs (" +
                    printable(joined(input_names(), ", ")) + "), got " +
                    std::to_string(inputs.size()),
                "give all of them, or name them with ExportedInputs");
  check_->check(inputs);
}

ExportedOutputs BoundGraph::run(std::vector<c10::IValue> inputs) const {
  check(inputs);
  if (!code_ || !hooked_.empty()) return interpret(std::move(inputs));
  if (auto tensors = code_->run(
          inputs, [&](const TensorsByName& instead) { return interpret(inputs, instead).tensors; }))
    return {.names = output_names(), .tensors = std::move(*tensors)};
  return interpret(std::move(inputs));
}

ExportedOutputs BoundGraph::interpret(std::vector<c10::IValue> inputs,
                                      const TensorsByName& instead) const {
  Frame frame = frame_of(inputs, instead);
  const bool mutates =
      std::any_of(graph_.outputs.begin(), graph_.outputs.end(), [](const OutputSpec& output) {
        return output.kind == OutputSpec::Kind::kInputMutation;
      });
  if (!mutates) inputs.clear();  // the frame lets go of them after their last use
  run_nodes(frame, 0, program_.num_nodes());
  return results_of(frame, inputs, instead);
}

Frame BoundGraph::frame_of(const std::vector<c10::IValue>& inputs,
                           const TensorsByName& instead) const {
  Frame frame(program_.num_values());
  load_tensors(frame, instead);
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (program_.is_used(user_values_[i])) frame[user_values_[i]] = inputs[i];
  return frame;
}

ExportedOutputs BoundGraph::results_of(const Frame& frame,
                                       const std::vector<c10::IValue>& inputs,
                                       const TensorsByName& instead) const {
  write_back(frame, inputs, instead);
  ExportedOutputs outputs;
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    if (graph_.outputs[i].kind != OutputSpec::Kind::kUser) continue;
    outputs.names.push_back(graph_.outputs[i].target);
    outputs.tensors.push_back(output_tensor(output_value(i, frame)));
  }
  return outputs;
}

std::vector<c10::IValue> BoundGraph::run_range(std::size_t begin,
                                               std::size_t end,
                                               const std::vector<std::size_t>& ids,
                                               std::vector<c10::IValue> values,
                                               const std::vector<std::size_t>& results) const {
  Frame frame(program_.num_values());
  load_tensors(frame);
  for (std::size_t i = 0; i < ids.size(); ++i) frame[ids[i]] = std::move(values[i]);
  run_nodes(frame, begin, end);
  std::vector<c10::IValue> out;
  out.reserve(results.size());
  for (const std::size_t id : results) out.push_back(std::move(frame[id]));
  return out;
}

}  // namespace accel::exported
