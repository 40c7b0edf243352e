// OptimizerTraits: what is known of LibTorch's optimizers, one entry for each class.
//
// Whoever saves, divides, counts or steps an optimizer asks here, and names no class. To add one: its entry in
// optimizer_traits.cc says what is below, and joins the table there. Of a class of the user's own nothing is known: it is saved
// by what it writes into an archive (engine/checkpoint/states/archived_optimizer.h), and divided by whole tensors alone.
//
// Threads:  a constant table; fields are borrowed from the state or the options.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>
#include <torch/optim/optimizer.h>

namespace accel {

// A field of a state or of options, by its name in checkpoints.
struct OptimizerField {
  using Value = std::variant<at::Tensor*,
                             std::deque<at::Tensor>*,
                             std::tuple<double, double>*,
                             double*,
                             bool*,
                             std::int64_t*,
                             std::optional<std::int64_t>*,
                             std::optional<std::string>*>;
  const char* name;
  Value value;
};
using OptimizerFields = c10::SmallVector<OptimizerField, 10>;

enum class StepScope {
  kElement,  // of an element depends on that one alone: shards can be stepped, and states have their parameters' shapes
  kTensor,  // of an element depends on its whole tensor: only whole tensors can be stepped; states as of kElement
  kAllParameters,  // needs all at once; the one state holds vectors over all parameters, as often as they are listed
};

// What a fused kernel steps at once.
struct FusedRun {
  at::Tensor parameter;
  at::Tensor gradient;
  std::vector<at::Tensor> states;  // those that makes_tensors() says, in its order
  std::int64_t num_steps = 0;      // so far; where the class does not count them, 1: it has stepped
};

struct OptimizerTraits {
  using Optimizer = torch::optim::Optimizer;
  using Options = torch::optim::OptimizerOptions;
  using State = torch::optim::OptimizerParamState;

  const char* name;  // in checkpoints and messages
  StepScope scope;

  bool (*is_class_of)(const Optimizer&);  // it, and none derived from it
  bool (*is_base_of)(const Optimizer&);   // it, or one derived from it
  bool (*has_options)(const Options&);
  bool (*has_state)(const State&);

  std::unique_ptr<Optimizer> (*make)(std::vector<torch::optim::OptimizerParamGroup>);
  std::unique_ptr<State> (*make_state)();
  void (*copy_options)(const Options& from, Options& to);

  // In the order that checkpoints were always written in. The first integer of a state counts the steps.
  OptimizerFields (*state_fields)(State&);
  OptimizerFields (*option_fields)(Options&);
  // By tensor of a state: whether the first step with these options makes it, of its parameter's size.
  std::vector<bool> (*makes_tensors)(const Options&);
  // What the constructor makes for a parameter; nullptr: nothing.
  std::unique_ptr<State> (*initial_state)(const Options&, const at::Tensor& parameter) = nullptr;
  // nullptr: LibTorch has no kernel.
  void (*fused_step)(const Options&, const FusedRun&) = nullptr;
};

// nullptr: of a class of the user's own, as are those derived from LibTorch's.
[[nodiscard]] const OptimizerTraits* traits_of(const torch::optim::Optimizer& optimizer);
// Of LibTorch's class that it is, or is derived from; nullptr: of none.
[[nodiscard]] const OptimizerTraits* base_traits_of(const torch::optim::Optimizer& optimizer);
// A class of the user's own may have the options and states of one of LibTorch's.
[[nodiscard]] const OptimizerTraits* traits_of(const torch::optim::OptimizerOptions& options);
[[nodiscard]] const OptimizerTraits* traits_of(const torch::optim::OptimizerParamState& state);

[[nodiscard]] inline bool is_element_wise(const OptimizerTraits& traits) {
  return traits.scope == StepScope::kElement;
}
// Whether shards of any optimizer's parameters can be stepped.
[[nodiscard]] bool is_element_wise(const torch::optim::Optimizer& optimizer);
// Whether states are by parameter, of its shape.
[[nodiscard]] inline bool has_state_by_parameter(const OptimizerTraits& traits) {
  return traits.scope != StepScope::kAllParameters;
}
[[nodiscard]] bool has_state_by_parameter(const torch::optim::Optimizer& optimizer);

// The classes of the table that `is_meant`, for messages: "SGD, Adam, AdamW".
[[nodiscard]] std::string optimizer_names(bool (*is_meant)(const OptimizerTraits&) = nullptr);

// The tensors and integers of a state, in the order of its fields.
struct OptimizerStateView {
  OptimizerStateView(const OptimizerTraits& traits, torch::optim::OptimizerParamState& state);
  c10::SmallVector<at::Tensor*, 4> tensors;
  c10::SmallVector<std::int64_t*, 4> numbers;
};

}  // namespace accel
