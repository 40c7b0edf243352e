// Builds a Program: each node becomes an instruction.
//
// What differs between training and evaluation in a graph that was exported in training mode is recorded on the way: arguments
// that are called train or training and are true, the probability of attention's dropout, whether batch and instance norms with
// running statistics take those of the batch, and the counters of batches. Flags that are false in such a graph are meant: a
// frozen batch norm stays one.

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include <accel/error.h>

#include "libaccel/exported/constants.h"
#include "libaccel/exported/program.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

using Kind = Instruction::Kind;

constexpr std::string_view kHigherOrder = "torch.ops.higher_order.";

// Assertions about what the trace saw. Autocast, mixed precision and to() change dtypes and devices on purpose; shapes of inputs
// are checked where they come in.
constexpr std::array<std::string_view, 1> kTraceAssertions{
    "torch.ops.aten._assert_tensor_metadata.default"};

// "File "model.py", line 20, in forward": the innermost line that is not torch's own, else the last one.
std::string line_of(const std::string& trace) {
  std::string last;
  std::size_t begin = 0;
  while (begin < trace.size()) {
    const std::size_t end = std::min(trace.find('\n', begin), trace.size());
    const std::string line = trace.substr(begin, end - begin);
    const std::size_t file = line.find("File \"");
    const bool is_torchs = line.find("/torch/") != std::string::npos;
    if (file != std::string::npos && (last.empty() || !is_torchs)) last = line.substr(file);
    begin = end + 1;
  }
  return printable(last);
}

struct IdVisitor {
  std::vector<ValueId>& ids;

  void operator()(const ValueArgument& value) const { ids.push_back(value.id); }
  void operator()(const TensorList& list) const {
    for (const ValueId id : list.ids)
      if (id != kNoValue) ids.push_back(id);
  }
  void operator()(const NumberList& list) const {
    for (const NumberItem& item : list.items)
      if (item.id != kNoValue) ids.push_back(item.id);
  }
  template <typename T>
  void operator()(const T&) const {}
};

std::vector<ValueId> ids_of(const Argument& argument) {
  std::vector<ValueId> ids;
  std::visit(IdVisitor{ids}, argument);
  return ids;
}

}  // namespace

class ProgramBuilder {
 public:
  ProgramBuilder(Program& program, const Graph& graph) : program_(program), graph_(graph) {}

  void build() {
    program_.names_ = graph_.values;
    find_lives();
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      node_ = i;
      program_.instructions_.push_back(instruction_of(graph_.nodes[i]));
    }
    for (const Argument& input : graph_.inputs) {
      const auto* value = std::get_if<ValueArgument>(&input);
      program_.inputs_.push_back(value == nullptr ? kNoValue : value->id);
    }
    for (const Argument& output : graph_.outputs) program_.outputs_.push_back(result_of(output));
    if (!unknown_.empty()) throw unknown_operators();
    settle_modes();
  }

 private:
  // --- lives

  void find_lives() {
    const auto end = static_cast<std::int64_t>(graph_.nodes.size());
    program_.defined_.assign(graph_.values.size(), -1);
    program_.last_uses_.assign(graph_.values.size(), -1);
    for (std::int64_t i = 0; i < end; ++i) {
      const Node& node = graph_.nodes[static_cast<std::size_t>(i)];
      std::vector<ValueId>& used = program_.used_.emplace_back();
      for (const NamedArgument& input : node.inputs) {
        for (const ValueId id : ids_of(input.value)) {
          program_.last_uses_[id] = i;
          used.push_back(id);
        }
      }
      for (const NodeOutput& output : node.outputs)
        for (const ValueId id : output.ids)
          if (id != kNoValue) program_.defined_[id] = i;
      program_.node_names_.push_back(node.name);
      program_.lines_.push_back(line_of(node.stack_trace));
    }
    for (const Argument& output : graph_.outputs)
      for (const ValueId id : ids_of(output)) program_.last_uses_[id] = end;
  }

  [[nodiscard]] bool dies_here(ValueId id) const {
    return program_.last_uses_[id] == static_cast<std::int64_t>(node_);
  }

  // Values that are named once, alone, by their last user are moved into it; other dying ones are dropped after the call.
  void plan_ends(Instruction& instruction) const {
    const std::vector<ValueId>& used = program_.used_[node_];
    for (const ValueId id : used) {
      if (!dies_here(id)) continue;
      ArgumentPlan* direct = nullptr;
      for (ArgumentPlan& argument : instruction.arguments)
        if (argument.source == ArgumentPlan::Source::kValue && argument.value == id)
          direct = &argument;
      if (direct != nullptr && std::count(used.begin(), used.end(), id) == 1) {
        direct->source = ArgumentPlan::Source::kLastUse;
      } else if (std::count(instruction.dropped.begin(), instruction.dropped.end(), id) == 0) {
        instruction.dropped.push_back(id);
      }
    }
  }

  // --- instructions

  Instruction instruction_of(const Node& node) {
    Instruction instruction;
    instruction.outputs = node.outputs;
    for (NodeOutput& output : instruction.outputs)
      for (ValueId& id : output.ids)
        if (id != kNoValue && program_.last_uses_[id] < 0) id = kNoValue;
    choose_kind(node, instruction);
    plan_ends(instruction);
    return instruction;
  }

  void choose_kind(const Node& node, Instruction& instruction) {
    if (std::find(kTraceAssertions.begin(), kTraceAssertions.end(), node.target) !=
        kTraceAssertions.end())
      return;
    if (node.target.starts_with(kHigherOrder)) return plan_higher_order(node, instruction);
    if (const auto symbolic = symbolic_operator(node.target)) {
      instruction.kind = Kind::kSymbolic;
      instruction.symbolic = *symbolic;
      return plan_in_order(node, instruction);
    }
    const auto name = operator_name(node.target);
    if (!name) return note_unknown(node, node.target);
    if (name->name == "aten::sym_size" && name->overload_name == "int") {
      instruction.kind = Kind::kSize;
      return plan_in_order(node, instruction);
    }
    if (const auto custom = custom_operator(name->name)) {
      instruction.kind = Kind::kCustom;
      instruction.custom = custom->function;
      return custom->schema ? plan_by_schema(node, *custom->schema, instruction)
                            : plan_in_order(node, instruction);
    }
    const auto handle = c10::Dispatcher::singleton().findSchema(*name);
    if (!handle) return note_unknown(node, c10::toString(*name));
    instruction.kind = Kind::kOperator;
    instruction.handle = *handle;
    plan_by_schema(node, handle->schema(), instruction);
    note_modes(node, handle->schema(), instruction);
  }

  void plan_in_order(const Node& node, Instruction& instruction) {
    for (const NamedArgument& input : node.inputs)
      instruction.arguments.push_back(plain_plan(node, input));
  }

  void plan_by_schema(const Node& node,
                      const c10::FunctionSchema& schema,
                      Instruction& instruction) {
    for (const NamedArgument& input : node.inputs) {
      if (!schema.argumentIndexWithName(input.name))
        throw unusable(node,
                       "has the argument '" + printable(input.name) + "', which " + schema.name() +
                           " has not");
    }
    for (const c10::Argument& argument : schema.arguments()) {
      const auto found =
          std::find_if(node.inputs.begin(), node.inputs.end(), [&](const NamedArgument& input) {
            return input.name == argument.name();
          });
      if (found == node.inputs.end()) {
        if (!argument.default_value() && argument.type()->kind() != c10::TypeKind::OptionalType)
          throw unusable(node, "lacks the argument '" + argument.name() + "' of " + schema.name());
        instruction.arguments.push_back(
            {.constant = argument.default_value().value_or(c10::IValue())});
        continue;
      }
      instruction.arguments.push_back(typed_plan(node, *found, argument));
      note_device(found->value, instruction);
    }
  }

  ArgumentPlan value_plan(ValueId id) const {
    return {.source = ArgumentPlan::Source::kValue, .value = id};
  }

  ArgumentPlan list_plan(ListPlan::Kind kind, std::vector<NumberItem> items) const {
    ArgumentPlan plan{.source = ArgumentPlan::Source::kList, .list = std::make_unique<ListPlan>()};
    *plan.list = {.kind = kind, .items = std::move(items)};
    return plan;
  }

  // Without knowing what the operator takes.
  ArgumentPlan plain_plan(const Node& node, const NamedArgument& input) const {
    if (const auto* value = std::get_if<ValueArgument>(&input.value)) return value_plan(value->id);
    if (const auto constant = constant_of(input.value)) return {.constant = *constant};
    if (const auto* tensors = std::get_if<TensorList>(&input.value)) {
      const bool has_none = std::count(tensors->ids.begin(), tensors->ids.end(), kNoValue) > 0;
      return list_plan(has_none ? ListPlan::Kind::kOptionalTensors : ListPlan::Kind::kTensors,
                       items_of(*tensors));
    }
    if (const auto* numbers = std::get_if<NumberList>(&input.value))
      return list_plan(ListPlan::Kind::kIntegers, numbers->items);
    throw unusable(node, "has an argument of a kind that is not supported" + kind_of(input.value));
  }

  static std::string kind_of(const Argument& argument) {
    const auto* other = std::get_if<OtherArgument>(&argument);
    return other == nullptr ? "" : ": " + printable(other->kind);
  }

  static std::vector<NumberItem> items_of(const TensorList& list) {
    std::vector<NumberItem> items;
    for (const ValueId id : list.ids) items.push_back({.id = id});
    return items;
  }

  ArgumentPlan typed_plan(const Node& node,
                          const NamedArgument& input,
                          const c10::Argument& argument) const {
    if (const auto constant = constant_of(input.value))
      return {.constant = adapted(*constant, argument)};
    ArgumentPlan plan = plain_plan(node, input);
    const c10::TypePtr type = needed_type(argument.type());
    const auto list = type->cast<c10::ListType>();
    if (plan.list != nullptr && list) {
      const c10::TypePtr element = list->getElementType();
      if (element->kind() == c10::TypeKind::OptionalType)
        plan.list->kind = ListPlan::Kind::kOptionalTensors;
      if (element->kind() == c10::TypeKind::FloatType) plan.list->kind = ListPlan::Kind::kFractions;
      if (element->kind() == c10::TypeKind::BoolType) plan.list->kind = ListPlan::Kind::kFlags;
    }
    const auto* value = std::get_if<ValueArgument>(&input.value);
    if (value == nullptr || value->is_tensor) return plan;
    if (type->kind() == c10::TypeKind::TensorType) plan.form = ArgumentPlan::Form::kTensor;
    if (type->kind() == c10::TypeKind::FloatType) plan.form = ArgumentPlan::Form::kFraction;
    if (list) plan.form = ArgumentPlan::Form::kIntegerList;
    return plan;
  }

  void note_device(const Argument& argument, const Instruction& instruction) {
    if (!std::holds_alternative<DeviceArgument>(argument)) return;
    const c10::IValue& constant = instruction.arguments.back().constant;
    if (constant.isDevice())
      program_.devices_.push_back(
          {node_, instruction.arguments.size() - 1, constant.toDevice().type()});
  }

  // --- graphs within graphs

  void plan_higher_order(const Node& node, Instruction& instruction) {
    const std::string_view name = std::string_view(node.target).substr(kHigherOrder.size());
    static constexpr std::array<std::pair<std::string_view, Kind>, 4> kKinds{{
        {"wrap_with_set_grad_enabled", Kind::kGradMode},
        {"wrap_with_autocast", Kind::kAutocast},
        {"cond", Kind::kCondition},
        {"while_loop", Kind::kLoop},
    }};
    const auto found = std::find_if(
        kKinds.begin(), kKinds.end(), [&](const auto& kind) { return kind.first == name; });
    if (found == kKinds.end()) return note_unknown(node, node.target);
    instruction.kind = found->second;
    for (const NamedArgument& input : node.inputs) {
      if (const auto* graph = std::get_if<GraphArgument>(&input.value)) {
        instruction.graphs.push_back(std::make_unique<Program>(*graph->graph, program_.source_));
        continue;
      }
      if (instruction.kind == Kind::kLoop && instruction.num_carried == 0)
        instruction.num_carried = static_cast<std::uint32_t>(num_operands(input.value));
      plan_operands(node, input, instruction);
    }
    check_operands(node, instruction);
  }

  static std::size_t num_operands(const Argument& argument) {
    if (const auto* tensors = std::get_if<TensorList>(&argument)) return tensors->ids.size();
    if (const auto* numbers = std::get_if<NumberList>(&argument)) return numbers->items.size();
    return 1;
  }

  // Lists of operands are handed on one by one.
  void plan_operands(const Node& node, const NamedArgument& input, Instruction& instruction) const {
    if (const auto* tensors = std::get_if<TensorList>(&input.value)) {
      for (const ValueId id : tensors->ids)
        instruction.arguments.push_back(id == kNoValue ? ArgumentPlan{} : value_plan(id));
    } else if (const auto* numbers = std::get_if<NumberList>(&input.value)) {
      for (const NumberItem& item : numbers->items)
        instruction.arguments.push_back(item.id == kNoValue ? ArgumentPlan{.constant = item.number}
                                                            : value_plan(item.id));
    } else {
      instruction.arguments.push_back(plain_plan(node, input));
    }
  }

  // What comes before the operands: a flag, autocast's four settings, a condition.
  void check_operands(const Node& node, const Instruction& instruction) const {
    const std::size_t graphs =
        instruction.kind == Kind::kCondition || instruction.kind == Kind::kLoop ? 2 : 1;
    const std::size_t settings = instruction.kind == Kind::kAutocast ? 4
                                 : instruction.kind == Kind::kLoop   ? 0
                                                                     : 1;
    bool fits = instruction.graphs.size() == graphs && instruction.arguments.size() >= settings;
    for (const auto& graph : instruction.graphs)
      fits = fits && graph->inputs_.size() == instruction.arguments.size() - settings;
    if (instruction.kind == Kind::kLoop && fits)
      fits = instruction.graphs[1]->outputs_.size() == instruction.num_carried &&
             instruction.graphs[0]->outputs_.size() == 1;
    if (!fits) throw unusable(node, "does not fit the graphs that it runs");
    const auto constant = [&](std::size_t i) -> const c10::IValue& {
      return instruction.arguments[i].constant;
    };
    if (instruction.kind == Kind::kGradMode && !constant(0).isBool())
      throw unusable(node, "has no flag for autograd");
    if (instruction.kind == Kind::kAutocast &&
        !(constant(0).isString() && (constant(1).isNone() || constant(1).isInt()) &&
          constant(2).isBool() && (constant(3).isNone() || constant(3).isBool())))
      throw unusable(node, "has settings of autocast that are not supported");
  }

  ArgumentPlan result_of(const Argument& argument) const {
    if (const auto* value = std::get_if<ValueArgument>(&argument)) return value_plan(value->id);
    const auto constant = constant_of(argument);
    if (!constant)
      throw Error(ErrorCode::kUnsupported,
                  "the exported model returns a list" + kind_of(argument),
                  "return tensors, in tuples or dicts of any depth");
    return {.constant = *constant};
  }

  // --- modes

  void note_switch(std::size_t argument, c10::IValue training, c10::IValue evaluation) {
    program_.switches_.push_back({node_, argument, std::move(training), std::move(evaluation)});
    exported_in_training_ = true;
  }

  static bool has_value(const Node& node, std::string_view argument) {
    return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const NamedArgument& input) {
      return input.name == argument && std::holds_alternative<ValueArgument>(input.value);
    });
  }

  void note_modes(const Node& node,
                  const c10::FunctionSchema& schema,
                  const Instruction& instruction) {
    for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
      const std::string& name = schema.arguments()[i].name();
      const c10::IValue& constant = instruction.arguments[i].constant;
      if (name == "dropout_p" && constant.isDouble() && constant.toDouble() > 0) {
        note_switch(i, constant, 0.0);
      } else if (constant.isBool() &&
                 (name == "train" || name == "training" || name == "use_input_stats")) {
        const bool is_norm = schema.name().find("_norm") != std::string::npos;
        if (is_norm && !has_value(node, "running_mean")) continue;  // has no other statistics
        program_.has_modes_ = true;
        if (constant.toBool()) note_switch(i, true, false);
      }
    }
    if (schema.name() == "aten::add_" && counts_batches(node))
      program_.switches_.push_back({node_, std::nullopt, {}, {}});
  }

  // BatchNorm's counter, a buffer that is an input of the graph.
  bool counts_batches(const Node& node) const {
    const auto* value = std::get_if<ValueArgument>(&node.inputs.front().value);
    return value != nullptr && program_.defined_[value->id] < 0 &&
           graph_.values[value->id].ends_with("num_batches_tracked");
  }

  void settle_modes() {
    for (const Instruction& instruction : program_.instructions_) {
      for (const auto& graph : instruction.graphs) {
        program_.has_modes_ |= graph->has_modes_;
        exported_in_training_ |= graph->is_exported_in_training_;
      }
    }
    program_.has_modes_ |= exported_in_training_;
    program_.is_exported_in_training_ = exported_in_training_;
  }

  // --- errors

  Error unusable(const Node& node, const std::string& what) const {
    return Error(ErrorCode::kUnsupported,
                 "the node " + printable(node.name) + " of the exported model " + what,
                 "export the model with torch 2.11")
        .while_doing("reading " + printable(node.target) + " from " + line_of(node.stack_trace));
  }

  void note_unknown(const Node& node, const std::string& name) {
    unknown_.try_emplace(printable(name), program_.where(node_));
    (void)node;
  }

  Error unknown_operators() const {
    std::string listed;
    for (const auto& [name, where] : unknown_)
      listed += (listed.empty() ? "" : "; ") + name + " (" + where + ")";
    return Error(ErrorCode::kUnsupported,
                 "the exported model uses operators that are not known: " + listed,
                 "give their functions with accel::register_operator() before the model is loaded");
  }

  Program& program_;
  const Graph& graph_;
  std::size_t node_ = 0;
  bool exported_in_training_ = false;
  std::map<std::string, std::string> unknown_;
};

Program::Program(const Graph& graph, std::string source) : source_(std::move(source)) {
  ProgramBuilder(*this, graph).build();
}

}  // namespace accel::exported
