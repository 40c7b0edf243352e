#include "libaccel/exporting/operator_trace.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>

#include <accel/error.h>

#include "libaccel/exporting/recorded_argument.h"
#include "libaccel/interception/backward_hooks.h"

namespace accel::exporting {
namespace {

using exported::Argument;
using exported::InputSpec;
using exported::kNoValue;
using exported::Node;
using exported::NodeOutput;
using exported::ValueArgument;
using exported::ValueId;

// Their results have whatever was in memory.
constexpr std::array<std::string_view, 5> kEmpty = {"aten::empty",
                                                    "aten::empty_like",
                                                    "aten::empty_strided",
                                                    "aten::new_empty",
                                                    "aten::new_empty_strided"};

// Change what autograd knows of a tensor, outside of any graph.
constexpr std::array<std::string_view, 6> kOutsideOfGraphs = {"aten::requires_grad_",
                                                              "aten::set_data",
                                                              "aten::retain_grad",
                                                              "aten::_backward",
                                                              "aten::backward",
                                                              "aten::resize_"};

template <typename Names>
bool is_listed(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Takes sizes of a tensor, and not its values.
bool reads_sizes_alone(std::string_view name) {
  const std::string_view short_name = name.substr(name.rfind(':') + 1);
  return short_name.ends_with("_like") || short_name.starts_with("new_");
}

bool is_write(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

bool is_of_tensors(const c10::TypePtr& type) {
  const auto list = type->cast<c10::ListType>();
  return (list ? list->getElementType() : type)->kind() == c10::TypeKind::TensorType;
}

// Others answer with what is known while tracing: sizes and the like.
bool is_for_graph(const c10::FunctionSchema& schema) {
  return std::ranges::any_of(schema.arguments(), is_write) ||
         std::ranges::any_of(schema.returns(), is_of_tensors, &c10::Argument::type);
}

// Calls visit(tensor) for a tensor, and for those of a list.
template <typename Visit>
void visit_tensors(const c10::IValue& value, const Visit& visit) {
  if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
  if (value.isTensorList() || (value.isList() && !value.isIntList() && !value.isDoubleList()))
    for (const c10::IValue& item : value.toListRef())
      if (item.isTensor() && item.toTensor().defined()) visit(item.toTensor());
}

// "torch.ops.aten.linear.default"
std::string target_of(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  name.replace(name.find("::"), 2, ".");
  return "torch.ops." + name + "." +
         (schema.overload_name().empty() ? "default" : schema.overload_name());
}

std::string base_name(const c10::FunctionSchema& schema) {
  return schema.name().substr(schema.name().rfind(':') + 1);
}

bool is_autocast_on() {
  return at::autocast::is_autocast_enabled(at::kCPU) ||
         at::autocast::is_autocast_enabled(at::kCUDA);
}

[[noreturn]] void refuse(const std::string& what, const std::string& remedy) {
  throw Error(ErrorCode::kUnsupported, what, remedy);
}

bool has_mask(const torch::jit::Stack& arguments) {
  bool found = false;
  visit_tensors(arguments.at(1), [&](const at::Tensor& index) {
    found |= index.scalar_type() == at::kBool || index.scalar_type() == at::kByte;
  });
  return found;
}

std::string traced_shape(const at::Tensor& tensor) {
  std::string text = "[";
  for (const std::int64_t size : tensor.sizes())
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

}  // namespace

OperatorTrace::OperatorTrace(const std::vector<ModuleTensor>& tensors,
                             const NamedTensors& inputs,
                             std::set<std::string> decided)
    : decided_(std::move(decided)) {
  for (const auto& [name, tensor] : inputs) {
    (void)names_.take_as_is(name);  // the caller has seen to it that they differ
  }
  for (const ModuleTensor& item : tensors) {
    const auto kind = item.is_parameter ? InputSpec::Kind::kParameter : InputSpec::Kind::kBuffer;
    const std::string name = names_.take((item.is_parameter ? "p_" : "b_") + item.name);
    const ValueId id = add_input(kind, item.name, name, item.tensor);
    if (known(item.tensor) != nullptr) continue;  // tied: operators take the first
    remember(item.tensor, id);
    remember_memory(
        item.tensor, item.is_parameter ? Origin::kParameter : Origin::kBuffer, item.name);
  }
  for (const auto& [name, tensor] : inputs) {
    const ValueId id = add_value(name, tensor);
    user_inputs_.push_back({.kind = InputSpec::Kind::kUser, .target = name, .id = id});
    remember(tensor, id);
    remember_memory(tensor, Origin::kInput, name);
  }
}

// ---- values ----

ValueId OperatorTrace::add_value(const std::string& name, const at::Tensor& tensor) {
  const auto id = static_cast<ValueId>(traced_.exported.graph.values.size());
  traced_.metas.push_back(meta_of(tensor, name));
  traced_.exported.graph.values.push_back(name);
  return id;
}

ValueId OperatorTrace::add_input(InputSpec::Kind kind,
                                 const std::string& target,
                                 const std::string& name,
                                 const at::Tensor& tensor) {
  const ValueId id = add_value(name, tensor);
  traced_.exported.inputs.push_back({.kind = kind, .target = target, .id = id});
  return id;
}

void OperatorTrace::remember(const at::Tensor& tensor, ValueId id) {
  const auto& impl = tensor.getIntrusivePtr();
  known_.insert_or_assign(impl.get(),
                          Known{.tensor = c10::weak_intrusive_ptr<c10::TensorImpl>(impl),
                                .id = id,
                                .requires_grad = tensor.requires_grad()});
}

OperatorTrace::Memory* OperatorTrace::memory_of(const at::Tensor& tensor) {
  if (!tensor.has_storage()) return nullptr;
  const auto found = memories_.find(tensor.storage().unsafeGetStorageImpl());
  return found == memories_.end() ? nullptr : &found->second;
}

void OperatorTrace::remember_memory(const at::Tensor& tensor,
                                    Origin origin,
                                    const std::string& name) {
  if (!tensor.has_storage()) return;
  const auto& impl = tensor.storage().getWeakStorageImpl();
  memories_.try_emplace(tensor.storage().unsafeGetStorageImpl(),
                        Memory{.storage = impl, .origin = origin, .name = name});
}

const OperatorTrace::Known* OperatorTrace::known(const at::Tensor& tensor) const {
  const auto found = known_.find(tensor.unsafeGetTensorImpl());
  return found == known_.end() ? nullptr : &found->second;
}

// ---- what operators take ----

// Whether sizes or the identity of tensors alone decide the answer of an operator that compares values.
bool OperatorTrace::answers_without_values(const c10::OperatorHandle& op,
                                           const torch::jit::Stack& arguments) const {
  if (op.schema().name() != "aten::equal") return false;
  const at::Tensor& left = arguments.at(0).toTensor();
  const at::Tensor& right = arguments.at(1).toTensor();
  return left.is_same(right) || left.sizes() != right.sizes();
}

void OperatorTrace::check_operator(const c10::OperatorHandle& op,
                                   const torch::jit::Stack& arguments) const {
  const c10::FunctionSchema& schema = op.schema();
  const std::string text = operator_text(schema);
  if (interception::is_in_backward())
    refuse("forward() runs a backward, and the operator " + text + " in it",
           "export a forward that returns the loss: whoever runs the graph derives it");
  if (is_autocast_on())
    refuse("autocast is on for the operator " + text + ", and a graph has the operators without it",
           "export without autocast, and turn it on around the model that runs the graph");
  if (is_listed(kOutsideOfGraphs, schema.name()))
    refuse("forward() calls the operator " + text + ", which is no part of a graph",
           "call it before forward(), or leave it out");
  if (decided_.contains(schema.name()) || answers_without_values(op, arguments)) return;
  const std::string remedy =
      "compute without it (at::where() in place of if), or, where its answer is always the same, "
      "name " +
      schema.name() + " in ExportOptions::decided_operators";
  // is_nonzero() is item() and a comparison.
  if (op.hasTag(at::Tag::data_dependent_output) || schema.name() == "aten::is_nonzero")
    refuse("forward() reads values of a tensor by the operator " + text +
               ": what it decides by them would be decided for good",
           remedy);
  if (op.hasTag(at::Tag::dynamic_output_shape) &&
      (schema.name() != "aten::index" || has_mask(arguments)))
    refuse("the size of what the operator " + text + " returns depends on values", remedy);
}

ValueId OperatorTrace::add_constant(const at::Tensor& tensor) {
  const std::string target = "lifted_tensor_" + std::to_string(traced_.constants.size());
  traced_.constants.emplace_back(target, tensor.detach().clone());
  const ValueId id = add_input(InputSpec::Kind::kConstant,
                               target,
                               names_.take("c_" + target),
                               traced_.constants.back().second);
  remember(tensor, id);
  remember_memory(tensor, Origin::kConstant, target);
  return id;
}

// Another tensor of the same memory and form, as Tensor::data() makes one: detached. kNoValue: there is none.
ValueId OperatorTrace::same_place(const at::Tensor& tensor) {
  for (const auto& [impl, value] : known_) {
    const auto held = value.tensor.lock();
    if (held == nullptr) continue;
    const at::Tensor other(held);
    if (other.has_storage() && other.is_alias_of(tensor) && other.dtype() == tensor.dtype() &&
        other.storage_offset() == tensor.storage_offset() && other.sizes() == tensor.sizes() &&
        other.strides() == tensor.strides())
      return value.id;
  }
  return kNoValue;
}

ValueId OperatorTrace::without_gradient(ValueId id, const at::Tensor& tensor) {
  Node node{.name = names_.take("detach"), .target = "torch.ops.aten.detach.default"};
  node.inputs.push_back({.name = "self", .value = ValueArgument{.id = id}});
  const ValueId result = add_value(node.name, tensor.detach());
  node.outputs.push_back({.is_list = false, .ids = {result}});
  traced_.exported.graph.nodes.push_back(std::move(node));
  return result;
}

void OperatorTrace::check_gradient(const c10::FunctionSchema& schema,
                                   const Known& value,
                                   const at::Tensor& tensor) {
  if (value.requires_grad || !tensor.requires_grad()) return;
  const Memory* memory = memory_of(tensor);
  if (memory != nullptr && memory->has_been_written) return;  // autograd makes views anew
  refuse("the operator " + operator_text(schema) + " takes " +
             traced_.exported.graph.values[value.id] +
             ", whose derivative comes from no operator: from torch::autograd::Function, or from "
             "requires_grad_()",
         "write what the function computes with operators, or register it as an operator of "
         "LibTorch with its derivative");
}

ValueId OperatorTrace::value_of(const c10::FunctionSchema& schema, const at::Tensor& tensor) {
  const Known* value = known(tensor);
  Memory* memory = memory_of(tensor);
  if (value != nullptr) {
    check_gradient(schema, *value, tensor);
    return value->id;
  }
  if (memory != nullptr) {
    const ValueId same = same_place(tensor);
    if (same == kNoValue)
      refuse("the operator " + operator_text(schema) + " takes a tensor of sizes " +
                 traced_shape(tensor) + " in the memory of " +
                 (memory->name.empty() ? "another value" : memory->name) +
                 ", which no operator has made",
             "make it in forward(), by operators of the tensor that it is a part of");
    const ValueId id = without_gradient(same, tensor);
    remember(tensor, id);
    return id;
  }
  if (tensor.requires_grad())
    refuse("the operator " + operator_text(schema) + " takes a tensor of sizes " +
               traced_shape(tensor) +
               " that requires a gradient and is neither a parameter of the module nor made by "
               "operators of forward()",
           "register it with register_parameter(), or make it in forward()");
  return add_constant(tensor);
}

Argument OperatorTrace::argument_of(const c10::FunctionSchema& schema,
                                    const c10::Argument& to,
                                    const at::Tensor& tensor) {
  const bool is_number = tensor.dim() == 0 && tensor.unsafeGetTensorImpl()->is_wrapped_number();
  if (is_number && known(tensor) == nullptr) {
    const at::Scalar number = tensor.item();
    if (number.isBoolean()) return number.toBool();
    if (number.isIntegral(/*includeBool=*/false)) return number.toLong();
    if (number.isFloatingPoint()) return number.toDouble();
  }
  Memory* memory = memory_of(tensor);
  const bool is_view = to.alias_info() != nullptr;
  if (memory != nullptr && memory->is_unwritten && !is_view && !reads_sizes_alone(schema.name())) {
    // Something else has filled it: torch::tensor() does.
    const ValueId id = add_constant(tensor);
    return ValueArgument{.id = id};
  }
  const ValueId id = value_of(schema, tensor);
  const bool loses_gradient = !at::GradMode::is_enabled() && tensor.requires_grad();
  return ValueArgument{.id = loses_gradient ? without_gradient(id, tensor) : id};
}

void OperatorTrace::note_write(const c10::FunctionSchema& schema, const at::Tensor& tensor) {
  Memory* memory = memory_of(tensor);
  if (memory == nullptr) return;
  if (memory->origin == Origin::kParameter || memory->origin == Origin::kConstant)
    refuse("the operator " + operator_text(schema) + " writes to " +
               (memory->origin == Origin::kParameter ? "the parameter " : "the constant ") +
               memory->name,
           "what forward() writes has to be a buffer: register_buffer()");
  memory->is_unwritten = false;
  memory->has_been_written = true;
}

// ---- nodes ----

Node OperatorTrace::node_of(const c10::OperatorHandle& op, const torch::jit::Stack& arguments) {
  const c10::FunctionSchema& schema = op.schema();
  Node node;
  node.target = target_of(schema);
  // Those by position are there up to the last that is not as it would be anyway.
  std::size_t end = 0;
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (!schema.arguments()[i].kwarg_only() && !is_default(schema.arguments()[i], arguments[i]))
      end = i + 1;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::Argument& to = schema.arguments()[i];
    if (to.kwarg_only() ? is_default(to, arguments[i]) : i >= end) continue;
    node.inputs.push_back({.name = to.name(),
                           .value = recorded_argument(schema,
                                                      to,
                                                      arguments[i],
                                                      [&](const at::Tensor& tensor) {
                                                        return argument_of(schema, to, tensor);
                                                      }),
                           .is_keyword = to.kwarg_only()});
  }
  return node;
}

ValueId OperatorTrace::result_value(const at::Tensor& tensor,
                                    const std::string& name,
                                    bool is_empty) {
  const ValueId id = add_value(name, tensor);
  // What an operator wrote to stays the value that it was.
  if (known(tensor) == nullptr) {
    remember(tensor, id);
  } else {
    known_.at(tensor.unsafeGetTensorImpl()).requires_grad = tensor.requires_grad();
  }
  if (memory_of(tensor) == nullptr) {
    remember_memory(tensor, Origin::kOperator, "");
    if (Memory* memory = memory_of(tensor)) memory->is_unwritten = is_empty;
  }
  return id;
}

void OperatorTrace::add_results(const c10::OperatorHandle& op,
                                Node node,
                                c10::ArrayRef<c10::IValue> results) {
  const std::string base = base_name(op.schema());
  const bool is_empty = is_listed(kEmpty, op.schema().name());
  node.name = names_.take(base);
  const bool is_single = results.size() == 1 && results[0].isTensor();
  const auto value_of_result = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return kNoValue;
    return result_value(tensor, is_single ? node.name : names_.take(base + "_out"), is_empty);
  };
  for (const c10::IValue& result : results) {
    NodeOutput output;
    if (result.isTensor()) {
      output.ids.push_back(value_of_result(result.toTensor()));
    } else if (result.isTensorList()) {
      output.is_list = true;
      for (const at::Tensor& tensor : result.toTensorVector())
        output.ids.push_back(value_of_result(tensor));
    } else {
      refuse("the operator " + operator_text(op.schema()) + " returns a " + result.tagKind() +
                 " beside tensors, which a graph of fixed sizes does not have",
             "use another operator");
    }
    node.outputs.push_back(std::move(output));
  }
  traced_.exported.graph.nodes.push_back(std::move(node));
}

bool OperatorTrace::run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = op.schema();
  const auto taken = torch::jit::last(*stack, schema.arguments().size());
  const torch::jit::Stack arguments(taken.begin(), taken.end());
  check_operator(op, arguments);
  if (!is_for_graph(schema)) return false;

  Node node = node_of(op, arguments);
  for (std::size_t i = 0; i < arguments.size(); ++i)
    if (is_write(schema.arguments()[i]))
      visit_tensors(arguments[i], [&](const at::Tensor& tensor) { note_write(schema, tensor); });
  op.callBoxed(stack);
  add_results(op, std::move(node), torch::jit::last(*stack, schema.returns().size()));
  return true;
}

TracedGraph OperatorTrace::finish(const NamedTensors& outputs) {
  const interception::NoHandlers inner;
  exported::ExportedGraph& exported = traced_.exported;
  static const c10::FunctionSchema as_output("return", "", {}, {});
  static const c10::Argument to("output");
  for (const auto& [name, tensor] : outputs) {
    if (!tensor.defined())
      refuse("forward() returns a tensor that is not defined as output " + name,
             "leave it out of what the export's forward returns");
    exported.graph.outputs.push_back(ValueArgument{.id = value_of(as_output, tensor)});
    exported.outputs.push_back({.kind = exported::OutputSpec::Kind::kUser, .target = name});
  }
  exported.inputs.insert(exported.inputs.end(), user_inputs_.begin(), user_inputs_.end());
  for (const InputSpec& input : exported.inputs) {
    exported.graph.inputs.push_back(ValueArgument{.id = input.id});
    exported::TensorShape shape{.dtype = traced_.metas[input.id].dtype};
    for (const LinearSize& size : traced_.metas[input.id].sizes)
      shape.sizes.emplace_back(size.number);
    exported.graph.input_shapes[input.id] = std::move(shape);
  }
  return std::move(traced_);
}

}  // namespace accel::exporting
