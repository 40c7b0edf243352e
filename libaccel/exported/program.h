// Program: a graph, ready to run: operators found, constants made, and the end of each value's life known.
//
// One instruction stands for one node. Its arguments are planned: most are constants or values as they are; lists of values are
// put together when it runs. A value that it is the last to use is moved into the call, so that its memory is free as soon as
// the operator lets go of it; what cannot be moved is dropped after the call.
//
// A region is a range of instructions: the plan of the whole holds for it too, since a value that is used later is not dropped
// in it, and is one of its outputs.
//
// Threads:  run() may be called by many at once. set_training() and set_device() alone.
// Source:   tests/unit/libaccel/exported/.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include "libaccel/exported/graph.h"
#include "libaccel/exported/operator_table.h"
#include "libaccel/exported/symbolic_operator.h"

namespace accel::exported {

class Program;

struct ListPlan {
  enum class Kind : std::uint8_t { kTensors, kOptionalTensors, kIntegers, kFractions, kFlags };
  Kind kind = Kind::kTensors;
  std::vector<NumberItem> items;
};

struct ArgumentPlan {
  enum class Source : std::uint8_t { kConstant, kValue, kLastUse, kList };
  // What a number becomes that an operator takes as something else.
  enum class Form : std::uint8_t { kAsIs, kTensor, kFraction, kIntegerList };
  Source source = Source::kConstant;
  Form form = Form::kAsIs;
  ValueId value = kNoValue;
  c10::IValue constant;
  std::unique_ptr<ListPlan> list;
};

struct Instruction {
  enum class Kind : std::uint8_t {
    kNothing,    // an assertion about how the graph was traced
    kOperator,   // of LibTorch
    kCustom,     // of register_operator()
    kSymbolic,   // arithmetic of sizes
    kSize,       // a dimension of a tensor
    kGradMode,   // graphs[0] with or without autograd
    kAutocast,   // graphs[0] with or without autocast
    kCondition,  // graphs[0] or graphs[1]
    kLoop,       // graphs[1] while graphs[0]
  };
  Kind kind = Kind::kNothing;
  bool is_skipped = false;  // in this mode
  SymbolicOperator symbolic = SymbolicOperator::kAdd;
  std::uint32_t num_carried = 0;  // kLoop: how many values go from one round to the next
  std::optional<c10::OperatorHandle> handle;
  std::shared_ptr<const ExportedOperator> custom;
  std::vector<ArgumentPlan> arguments;
  std::vector<NodeOutput> outputs;  // kNoValue where nobody uses one
  std::vector<ValueId> dropped;     // after the call
  std::vector<std::unique_ptr<Program>> graphs;
};

// The values of one run.
using Frame = std::vector<c10::IValue>;

class Program {
 public:
  // Throws kUnsupported, naming each operator that is not known, with its node and the line of Python it comes from.
  // source: the file, for messages.
  Program(const Graph& graph, std::string source);

  [[nodiscard]] std::size_t num_values() const noexcept { return names_.size(); }
  [[nodiscard]] std::size_t num_nodes() const noexcept { return instructions_.size(); }
  [[nodiscard]] const std::string& value_name(ValueId id) const { return names_[id]; }
  [[nodiscard]] bool is_used(ValueId id) const { return last_uses_[id] >= 0; }

  // Runs a range of instructions. Throws what operators throw, with the node and its line.
  void run(Frame& frame, std::size_t begin, std::size_t end) const;
  // The whole graph as a function.
  [[nodiscard]] std::vector<c10::IValue> call(std::vector<c10::IValue> inputs) const;

  // What a range takes from before it, and what is used after it. Values below num_inputs are the graph's own inputs.
  [[nodiscard]] std::vector<std::size_t> values_into(std::size_t begin, std::size_t end) const;
  [[nodiscard]] std::vector<std::size_t> values_out_of(std::size_t begin, std::size_t end) const;
  // Of the values that the graph takes: which of them a range uses.
  [[nodiscard]] bool uses(ValueId id, std::size_t begin, std::size_t end) const;
  // Whether a node from this one on uses it, or it is an output.
  [[nodiscard]] bool is_used_from(ValueId id, std::size_t begin) const {
    return last_uses_[id] >= static_cast<std::int64_t>(begin);
  }

  // Switches what a graph that was exported in training mode does differently in evaluation.
  void set_training(bool on);
  [[nodiscard]] bool can_switch() const noexcept { return is_exported_in_training_; }
  // A graph with dropout or batch norm that was exported in evaluation mode.
  [[nodiscard]] bool is_fixed_evaluation() const noexcept {
    return has_modes_ && !is_exported_in_training_;
  }
  // Where the arguments that name a device of this type have theirs from now on.
  void set_device(c10::DeviceType exported, c10::Device device);

  // "node linear_3, from File ..., line 20, in forward"
  [[nodiscard]] std::string where(std::size_t instruction) const;

 private:
  friend class ProgramBuilder;
  struct ModeSwitch {
    std::size_t instruction;
    std::optional<std::size_t> argument;  // none: the instruction is skipped in evaluation
    c10::IValue training;
    c10::IValue evaluation;
  };
  struct DeviceUse {
    std::size_t instruction;
    std::size_t argument;
    c10::DeviceType exported;
  };

  void execute(const Instruction& instruction, Frame& frame, std::vector<c10::IValue>& stack) const;
  void run_subgraph(const Instruction& instruction, std::vector<c10::IValue>& stack) const;
  void run_loop(const Instruction& instruction, std::vector<c10::IValue>& stack) const;

  std::string source_;
  std::vector<std::string> names_;
  std::vector<Instruction> instructions_;
  std::vector<std::string> node_names_;
  std::vector<std::string> lines_;  // of Python, by node
  std::vector<ValueId> inputs_;
  std::vector<ArgumentPlan> outputs_;
  std::vector<std::vector<ValueId>> used_;  // by node
  std::vector<std::int64_t> defined_;       // the node that defines a value; -1: an input
  std::vector<std::int64_t> last_uses_;     // the node; num_nodes(): an output; -1: nobody
  std::vector<ModeSwitch> switches_;
  std::vector<DeviceUse> devices_;
  bool has_modes_ = false;
  bool is_exported_in_training_ = false;
};

}  // namespace accel::exported
