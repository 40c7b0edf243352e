#include "libaccel/exported/program.h"

#include <algorithm>

#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>

#include <accel/precision.h>

#include "libaccel/exported/constants.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

using Stack = std::vector<c10::IValue>;

std::int64_t number_at(const NumberItem& item, const Frame& frame) {
  return item.id == kNoValue ? item.number : frame[item.id].toInt();
}

template <typename T, typename Read>
c10::IValue list_value(const std::vector<NumberItem>& items, const Read& read) {
  c10::List<T> list;
  list.reserve(items.size());
  for (const NumberItem& item : items) list.push_back(read(item));
  return list;
}

c10::IValue gathered_list(const ListPlan& plan, const Frame& frame) {
  switch (plan.kind) {
    case ListPlan::Kind::kTensors:
      return list_value<at::Tensor>(
          plan.items, [&](const NumberItem& item) { return frame[item.id].toTensor(); });
    case ListPlan::Kind::kOptionalTensors:
      return list_value<std::optional<at::Tensor>>(
          plan.items, [&](const NumberItem& item) -> std::optional<at::Tensor> {
            if (item.id == kNoValue || frame[item.id].isNone()) return std::nullopt;
            return frame[item.id].toTensor();
          });
    case ListPlan::Kind::kIntegers:
      return list_value<std::int64_t>(
          plan.items, [&](const NumberItem& item) { return number_at(item, frame); });
    case ListPlan::Kind::kFractions:
      return list_value<double>(plan.items, [&](const NumberItem& item) {
        return item.id == kNoValue ? static_cast<double>(item.number)
                                   : frame[item.id].toScalar().toDouble();
      });
    case ListPlan::Kind::kFlags:
      return list_value<bool>(plan.items, [&](const NumberItem& item) {
        return item.id == kNoValue ? item.number != 0 : frame[item.id].toBool();
      });
  }
  return {};
}

c10::IValue in_form(c10::IValue value, ArgumentPlan::Form form) {
  switch (form) {
    case ArgumentPlan::Form::kTensor:
      return value.isTensor() ? std::move(value) : c10::IValue(wrapped_number(value));
    case ArgumentPlan::Form::kFraction:
      return value.isInt() ? c10::IValue(static_cast<double>(value.toInt())) : std::move(value);
    case ArgumentPlan::Form::kIntegerList:
      return std::vector<std::int64_t>{value.toInt()};
    case ArgumentPlan::Form::kAsIs:
      break;
  }
  return value;
}

void push_argument(const ArgumentPlan& plan, Frame& frame, Stack& stack) {
  switch (plan.source) {
    case ArgumentPlan::Source::kConstant:
      stack.push_back(plan.constant);
      return;
    case ArgumentPlan::Source::kValue:
      stack.push_back(frame[plan.value]);
      break;
    case ArgumentPlan::Source::kLastUse:
      stack.push_back(std::move(frame[plan.value]));
      break;
    case ArgumentPlan::Source::kList:
      stack.push_back(gathered_list(*plan.list, frame));
      return;
  }
  if (plan.form != ArgumentPlan::Form::kAsIs)
    stack.back() = in_form(std::move(stack.back()), plan.form);
}

// Each output is a result, or one result is a list that holds them; results of graphs within come one by one.
void store_results(const std::vector<NodeOutput>& outputs, Stack& stack, Frame& frame) {
  std::size_t next = 0;
  for (const NodeOutput& output : outputs) {
    const bool is_one_list = output.is_list && next < stack.size() && stack[next].isList() &&
                             outputs.size() <= stack.size();
    if (is_one_list) {
      const c10::List<c10::IValue> list = stack[next++].toList();
      TORCH_CHECK(list.size() == output.ids.size(),
                  "the graph names ",
                  output.ids.size(),
                  " tensors of a list that has ",
                  list.size());
      for (std::size_t i = 0; i < output.ids.size(); ++i)
        if (output.ids[i] != kNoValue) frame[output.ids[i]] = list.get(i);
      continue;
    }
    for (const ValueId id : output.ids) {
      TORCH_CHECK(next < stack.size(), "the graph names more results than there are");
      if (id != kNoValue) frame[id] = std::move(stack[next]);
      ++next;
    }
  }
}

Stack operands_of(Stack& stack, std::size_t begin) {
  return Stack(std::make_move_iterator(stack.begin() + static_cast<std::ptrdiff_t>(begin)),
               std::make_move_iterator(stack.end()));
}

AutocastOptions autocast_options(const Stack& settings) {
  const auto device = c10::Device(settings[0].toStringRef()).type();
  return {.device_type = device,
          .dtype = settings[1].isNone() ? at::autocast::get_autocast_dtype(device)
                                        : static_cast<at::ScalarType>(settings[1].toInt()),
          .enabled = settings[2].toBool(),
          .cache_enabled = settings[3].isNone() ? at::autocast::is_autocast_cache_enabled()
                                                : settings[3].toBool()};
}

bool is_true(const c10::IValue& value) {
  return value.isTensor() ? value.toTensor().item<bool>() : value.toBool();
}

std::int64_t size_of(const Stack& stack) {
  return stack[0].toTensor().size(stack[1].toInt());
}

}  // namespace

void Program::run(Frame& frame, std::size_t begin, std::size_t end) const {
  Stack stack;
  stack.reserve(16);
  for (std::size_t i = begin; i < end; ++i) {
    const Instruction& instruction = instructions_[i];
    if (!instruction.is_skipped && instruction.kind != Instruction::Kind::kNothing) {
      try {
        execute(instruction, frame, stack);
      } catch (c10::Error& error) {
        error.add_context("at " + where(i) + " of " + printable(source_));
        throw;
      }
    }
    for (const ValueId id : instruction.dropped) frame[id] = c10::IValue();
  }
}

void Program::execute(const Instruction& instruction, Frame& frame, Stack& stack) const {
  stack.clear();
  for (const ArgumentPlan& argument : instruction.arguments) push_argument(argument, frame, stack);
  switch (instruction.kind) {
    case Instruction::Kind::kOperator:
      instruction.handle->callBoxed(stack);
      break;
    case Instruction::Kind::kSize:
      stack = {size_of(stack)};
      break;
    case Instruction::Kind::kSymbolic:
      stack = {evaluate(instruction.symbolic, stack)};
      break;
    case Instruction::Kind::kCustom:
      stack = (*instruction.custom)(std::move(stack));
      break;
    default:
      run_subgraph(instruction, stack);
      break;
  }
  store_results(instruction.outputs, stack, frame);
}

void Program::run_subgraph(const Instruction& instruction, Stack& stack) const {
  switch (instruction.kind) {
    case Instruction::Kind::kGradMode: {
      const at::AutoGradMode mode(stack[0].toBool());
      stack = instruction.graphs[0]->call(operands_of(stack, 1));
      break;
    }
    case Instruction::Kind::kAutocast: {
      const Autocast scope(autocast_options(stack));
      stack = instruction.graphs[0]->call(operands_of(stack, 4));
      break;
    }
    case Instruction::Kind::kCondition: {
      const bool chosen = is_true(stack[0]);
      stack = instruction.graphs[chosen ? 0 : 1]->call(operands_of(stack, 1));
      break;
    }
    default:
      run_loop(instruction, stack);
      break;
  }
}

void Program::run_loop(const Instruction& instruction, Stack& stack) const {
  const auto carried = static_cast<std::ptrdiff_t>(instruction.num_carried);
  while (is_true(instruction.graphs[0]->call(stack)[0])) {
    Stack next = instruction.graphs[1]->call(stack);
    std::move(next.begin(), next.end(), stack.begin());
  }
  stack.erase(stack.begin() + carried, stack.end());
}

std::vector<c10::IValue> Program::call(std::vector<c10::IValue> inputs) const {
  Frame frame(num_values());
  TORCH_CHECK(inputs.size() == inputs_.size(),
              "a graph takes ",
              inputs_.size(),
              " values, got ",
              inputs.size());
  for (std::size_t i = 0; i < inputs.size(); ++i)
    if (inputs_[i] != kNoValue) frame[inputs_[i]] = std::move(inputs[i]);
  run(frame, 0, num_nodes());
  std::vector<c10::IValue> results;
  results.reserve(outputs_.size());
  for (const ArgumentPlan& output : outputs_)
    results.push_back(output.value == kNoValue ? output.constant : frame[output.value]);
  return results;
}

bool Program::uses(ValueId id, std::size_t begin, std::size_t end) const {
  for (std::size_t i = begin; i < end; ++i)
    if (std::find(used_[i].begin(), used_[i].end(), id) != used_[i].end()) return true;
  return false;
}

std::vector<std::size_t> Program::values_into(std::size_t begin, std::size_t end) const {
  std::vector<std::size_t> values;
  std::vector<bool> seen(num_values());
  for (std::size_t i = begin; i < end; ++i) {
    for (const ValueId id : used_[i]) {
      if (defined_[id] < 0 || defined_[id] >= static_cast<std::int64_t>(begin) || seen[id])
        continue;
      seen[id] = true;
      values.push_back(id);
    }
  }
  return values;
}

std::vector<std::size_t> Program::values_out_of(std::size_t begin, std::size_t end) const {
  std::vector<std::size_t> values;
  for (std::size_t id = 0; id < num_values(); ++id) {
    const bool is_defined_in = defined_[id] >= static_cast<std::int64_t>(begin) &&
                               defined_[id] < static_cast<std::int64_t>(end);
    if (is_defined_in && last_uses_[id] >= static_cast<std::int64_t>(end)) values.push_back(id);
  }
  return values;
}

void Program::set_training(bool on) {
  for (const ModeSwitch& change : switches_) {
    Instruction& instruction = instructions_[change.instruction];
    if (change.argument) {
      instruction.arguments[*change.argument].constant = on ? change.training : change.evaluation;
    } else {
      instruction.is_skipped = !on;
    }
  }
  for (Instruction& instruction : instructions_)
    for (const auto& graph : instruction.graphs) graph->set_training(on);
}

void Program::set_device(c10::DeviceType exported, c10::Device device) {
  for (const DeviceUse& use : devices_)
    if (use.exported == exported)
      instructions_[use.instruction].arguments[use.argument].constant = device;
  for (Instruction& instruction : instructions_)
    for (const auto& graph : instruction.graphs) graph->set_device(exported, device);
}

std::string Program::where(std::size_t instruction) const {
  const std::string& line = lines_[instruction];
  return "node " + printable(node_names_[instruction]) + (line.empty() ? "" : ", from " + line);
}

}  // namespace accel::exported
