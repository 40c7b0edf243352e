// An entry is a struct: the three classes of LibTorch, the name, the fields of a state and of options, and what else differs
// from OptimizerEntry. traits_from() makes the row of the table of it.

#include "libaccel/tensors/optimizer_traits.h"

#include <algorithm>
#include <array>
#include <typeinfo>
#include <utility>

#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/lion.h>
#include <accel/lomo.h>
#include <accel/muon.h>
#include <accel/schedule_free.h>

namespace accel {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamGroup;
using torch::optim::OptimizerParamState;

using Fields = OptimizerFields;
using Made = std::vector<bool>;

template <typename C, typename S, typename O>
struct OptimizerEntry {
  using Class = C;
  using State = S;
  using Options = O;
  static constexpr StepScope kScope = StepScope::kElement;
  static Made makes_tensors(const Options&) { return {}; }
  // initial_state() and fused_step(): of those that have them.
};

struct SgdEntry
    : OptimizerEntry<torch::optim::SGD, torch::optim::SGDParamState, torch::optim::SGDOptions> {
  static constexpr const char* kName = "SGD";
  static Fields fields(State& state) { return {{"momentum_buffer", &state.momentum_buffer()}}; }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()},
            {"momentum", &options.momentum()},
            {"dampening", &options.dampening()},
            {"weight_decay", &options.weight_decay()},
            {"nesterov", &options.nesterov()}};
  }
  static Made makes_tensors(const Options& options) { return {options.momentum() != 0}; }
  static void fused_step(const Options& options, const FusedRun& run) {
    at::_fused_sgd_({run.parameter},
                    {run.gradient},
                    run.states,
                    options.weight_decay(),
                    options.momentum(),
                    options.lr(),
                    options.dampening(),
                    options.nesterov(),
                    /*maximize=*/false,
                    /*is_first_step=*/run.num_steps == 0);
  }
};

// at::_fused_adam_ and at::_fused_adamw_, the overloads with a learning rate of the host.
using FusedAdam = void (*)(at::TensorList parameters,
                           at::TensorList gradients,
                           at::TensorList means,
                           at::TensorList squares,
                           at::TensorList largest,
                           at::TensorList steps,
                           double lr,
                           double beta1,
                           double beta2,
                           double weight_decay,
                           double eps,
                           bool amsgrad,
                           bool maximize,
                           const std::optional<at::Tensor>& grad_scale,
                           const std::optional<at::Tensor>& found_inf);

template <typename C, typename S, typename O, FusedAdam kernel>
struct AdamLikeEntry : OptimizerEntry<C, S, O> {
  static Fields fields(S& state) {
    return {{"step", &state.step()},
            {"exp_avg", &state.exp_avg()},
            {"exp_avg_sq", &state.exp_avg_sq()},
            {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
  }
  static Fields fields(O& options) {
    return {{"lr", &options.lr()},
            {"betas", &options.betas()},
            {"eps", &options.eps()},
            {"weight_decay", &options.weight_decay()},
            {"amsgrad", &options.amsgrad()}};
  }
  static Made makes_tensors(const O& options) { return {true, true, options.amsgrad()}; }
  static void fused_step(const O& options, const FusedRun& run) {
    const auto [beta1, beta2] = options.betas();
    const at::Tensor steps = at::full(
        {}, static_cast<double>(run.num_steps + 1), run.parameter.options().dtype(at::kFloat));
    kernel({run.parameter},
           {run.gradient},
           {run.states[0]},
           {run.states[1]},
           at::TensorList(run.states).slice(2),
           {steps},
           options.lr(),
           beta1,
           beta2,
           options.weight_decay(),
           options.eps(),
           options.amsgrad(),
           /*maximize=*/false,
           /*grad_scale=*/{},
           /*found_inf=*/{});
  }
};

struct AdamEntry : AdamLikeEntry<torch::optim::Adam,
                                 torch::optim::AdamParamState,
                                 torch::optim::AdamOptions,
                                 FusedAdam{&at::_fused_adam_}> {
  static constexpr const char* kName = "Adam";
};

struct AdamWEntry : AdamLikeEntry<torch::optim::AdamW,
                                  torch::optim::AdamWParamState,
                                  torch::optim::AdamWOptions,
                                  FusedAdam{&at::_fused_adamw_}> {
  static constexpr const char* kName = "AdamW";
};

struct RmspropEntry : OptimizerEntry<torch::optim::RMSprop,
                                     torch::optim::RMSpropParamState,
                                     torch::optim::RMSpropOptions> {
  static constexpr const char* kName = "RMSprop";
  static Fields fields(State& state) {
    return {{"step", &state.step()},
            {"square_avg", &state.square_avg()},
            {"momentum_buffer", &state.momentum_buffer()},
            {"grad_avg", &state.grad_avg()}};
  }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()},
            {"alpha", &options.alpha()},
            {"eps", &options.eps()},
            {"weight_decay", &options.weight_decay()},
            {"momentum", &options.momentum()},
            {"centered", &options.centered()}};
  }
  static Made makes_tensors(const Options& options) {
    return {true, options.momentum() > 0, options.centered()};
  }
};

struct AdagradEntry : OptimizerEntry<torch::optim::Adagrad,
                                     torch::optim::AdagradParamState,
                                     torch::optim::AdagradOptions> {
  static constexpr const char* kName = "Adagrad";
  static Fields fields(State& state) { return {{"step", &state.step()}, {"sum", &state.sum()}}; }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()},
            {"lr_decay", &options.lr_decay()},
            {"weight_decay", &options.weight_decay()},
            {"initial_accumulator_value", &options.initial_accumulator_value()},
            {"eps", &options.eps()}};
  }
  static std::unique_ptr<OptimizerParamState> initial_state(const Options& options,
                                                            const at::Tensor& parameter) {
    auto state = std::make_unique<State>();
    state->step(0);
    state->sum(at::full_like(
        parameter.data(), options.initial_accumulator_value(), at::MemoryFormat::Preserve));
    return state;
  }
};

// "al" is left out: the two-loop recursion overwrites it before it reads it.
struct LbfgsEntry : OptimizerEntry<torch::optim::LBFGS,
                                   torch::optim::LBFGSParamState,
                                   torch::optim::LBFGSOptions> {
  static constexpr const char* kName = "LBFGS";
  static constexpr StepScope kScope = StepScope::kAllParameters;
  static Fields fields(State& state) {
    return {{"func_evals", &state.func_evals()},
            {"n_iter", &state.n_iter()},
            {"t", &state.t()},
            {"prev_loss", &state.prev_loss()},
            {"d", &state.d()},
            {"H_diag", &state.H_diag()},
            {"prev_flat_grad", &state.prev_flat_grad()},
            {"old_dirs", &state.old_dirs()},
            {"old_stps", &state.old_stps()},
            {"ro", &state.ro()}};
  }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()},
            {"max_iter", &options.max_iter()},
            {"max_eval", &options.max_eval()},
            {"tolerance_grad", &options.tolerance_grad()},
            {"tolerance_change", &options.tolerance_change()},
            {"history_size", &options.history_size()},
            {"line_search_fn", &options.line_search_fn()}};
  }
};

// What both schedule-free optimizers have behind their own options.
template <typename Options>
void add_schedule(Fields& fields, Options& options) {
  ScheduleFreeProgress& progress = options.progress();
  fields.push_back({"warmup_steps", &options.warmup_steps()});
  fields.push_back({"r", &options.r()});
  fields.push_back({"weight_lr_power", &options.weight_lr_power()});
  fields.push_back({"k", &progress.k});
  fields.push_back({"train_mode", &progress.train_mode});
  fields.push_back({"weight_sum", &progress.weight_sum});
  fields.push_back({"lr_max", &progress.lr_max});
  fields.push_back({"scheduled_lr", &progress.scheduled_lr});
}

struct AdamWScheduleFreeEntry
    : OptimizerEntry<AdamWScheduleFree, AdamWScheduleFreeState, AdamWScheduleFreeOptions> {
  static constexpr const char* kName = "AdamWScheduleFree";
  static Fields fields(State& state) {
    return {{"z", &state.z()}, {"exp_avg_sq", &state.exp_avg_sq()}};
  }
  static Fields fields(Options& options) {
    Fields fields = {{"lr", &options.lr()},
                     {"betas", &options.betas()},
                     {"eps", &options.eps()},
                     {"weight_decay", &options.weight_decay()}};
    add_schedule(fields, options);
    return fields;
  }
  static Made makes_tensors(const Options&) { return {true, true}; }
};

struct SgdScheduleFreeEntry
    : OptimizerEntry<SGDScheduleFree, SGDScheduleFreeState, SGDScheduleFreeOptions> {
  static constexpr const char* kName = "SGDScheduleFree";
  static Fields fields(State& state) { return {{"z", &state.z()}}; }
  static Fields fields(Options& options) {
    Fields fields = {{"lr", &options.lr()},
                     {"momentum", &options.momentum()},
                     {"weight_decay", &options.weight_decay()}};
    add_schedule(fields, options);
    return fields;
  }
  static Made makes_tensors(const Options&) { return {true}; }
};

struct LionEntry : OptimizerEntry<Lion, LionState, LionOptions> {
  static constexpr const char* kName = "Lion";
  static Fields fields(State& state) { return {{"exp_avg", &state.exp_avg()}}; }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()},
            {"betas", &options.betas()},
            {"weight_decay", &options.weight_decay()}};
  }
  static Made makes_tensors(const Options&) { return {true}; }
};

struct LomoEntry : OptimizerEntry<Lomo, LomoState, LomoOptions> {
  static constexpr const char* kName = "Lomo";
  static Fields fields(State&) { return {}; }
  static Fields fields(Options& options) {
    return {{"lr", &options.lr()}, {"weight_decay", &options.weight_decay()}};
  }
};

struct MuonEntry : OptimizerEntry<Muon, MuonState, MuonOptions> {
  static constexpr const char* kName = "Muon";
  static constexpr StepScope kScope = StepScope::kTensor;
  static Fields fields(State& state) { return {{"momentum_buffer", &state.momentum_buffer()}}; }
  static Fields fields(Options& options) {
    auto& [a, b, c] = options.ns_coefficients();
    return {{"lr", &options.lr()},
            {"weight_decay", &options.weight_decay()},
            {"momentum", &options.momentum()},
            {"nesterov", &options.nesterov()},
            {"ns_coefficient_a", &a},
            {"ns_coefficient_b", &b},
            {"ns_coefficient_c", &c},
            {"eps", &options.eps()},
            {"ns_steps", &options.ns_steps()},
            {"adjust_lr_fn", &options.adjust_lr_fn()}};
  }
  static Made makes_tensors(const Options&) { return {true}; }
};

template <typename E>
constexpr OptimizerTraits traits_from() {
  using State = typename E::State;
  using Options = typename E::Options;
  OptimizerTraits traits{
      .name = E::kName,
      .scope = E::kScope,
      .is_class_of =
          [](const Optimizer& optimizer) { return typeid(optimizer) == typeid(typename E::Class); },
      .is_base_of =
          [](const Optimizer& optimizer) {
            return dynamic_cast<const typename E::Class*>(&optimizer) != nullptr;
          },
      .has_options =
          [](const OptimizerOptions& options) {
            return dynamic_cast<const Options*>(&options) != nullptr;
          },
      .has_state =
          [](const OptimizerParamState& state) {
            return dynamic_cast<const State*>(&state) != nullptr;
          },
      .make = [](std::vector<OptimizerParamGroup> groups) -> std::unique_ptr<Optimizer> {
        Options defaults = dynamic_cast<const Options&>(groups.front().options());
        return std::make_unique<typename E::Class>(std::move(groups), std::move(defaults));
      },
      .make_state = []() -> std::unique_ptr<OptimizerParamState> {
        return std::make_unique<State>();
      },
      .copy_options =
          [](const OptimizerOptions& from, OptimizerOptions& to) {
            dynamic_cast<Options&>(to) = dynamic_cast<const Options&>(from);
          },
      .state_fields =
          [](OptimizerParamState& state) { return E::fields(dynamic_cast<State&>(state)); },
      .option_fields =
          [](OptimizerOptions& options) { return E::fields(dynamic_cast<Options&>(options)); },
      .makes_tensors =
          [](const OptimizerOptions& options) {
            return E::makes_tensors(dynamic_cast<const Options&>(options));
          },
  };
  if constexpr (requires { &E::initial_state; }) {
    traits.initial_state = [](const OptimizerOptions& options, const at::Tensor& parameter) {
      return E::initial_state(dynamic_cast<const Options&>(options), parameter);
    };
  }
  if constexpr (requires { &E::fused_step; }) {
    traits.fused_step = [](const OptimizerOptions& options, const FusedRun& run) {
      E::fused_step(dynamic_cast<const Options&>(options), run);
    };
  }
  return traits;
}

constexpr std::array kOptimizers = {
    traits_from<SgdEntry>(),
    traits_from<AdamEntry>(),
    traits_from<AdamWEntry>(),
    traits_from<RmspropEntry>(),
    traits_from<AdagradEntry>(),
    traits_from<LbfgsEntry>(),
    traits_from<AdamWScheduleFreeEntry>(),
    traits_from<SgdScheduleFreeEntry>(),
    traits_from<LionEntry>(),
    traits_from<LomoEntry>(),
    traits_from<MuonEntry>(),
};

template <typename Subject>
const OptimizerTraits* find_traits(bool (*OptimizerTraits::*is_of)(const Subject&),
                                   const Subject& subject) {
  const auto found =
      std::find_if(kOptimizers.begin(), kOptimizers.end(), [&](const OptimizerTraits& traits) {
        return (traits.*is_of)(subject);
      });
  return found == kOptimizers.end() ? nullptr : &*found;
}

}  // namespace

const OptimizerTraits* traits_of(const Optimizer& optimizer) {
  return find_traits(&OptimizerTraits::is_class_of, optimizer);
}

const OptimizerTraits* base_traits_of(const Optimizer& optimizer) {
  return find_traits(&OptimizerTraits::is_base_of, optimizer);
}

const OptimizerTraits* traits_of(const OptimizerOptions& options) {
  return find_traits(&OptimizerTraits::has_options, options);
}

const OptimizerTraits* traits_of(const OptimizerParamState& state) {
  return find_traits(&OptimizerTraits::has_state, state);
}

bool is_element_wise(const Optimizer& optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  return traits != nullptr && is_element_wise(*traits);
}

bool has_state_by_parameter(const Optimizer& optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  return traits != nullptr && has_state_by_parameter(*traits);
}

std::string optimizer_names(bool (*is_meant)(const OptimizerTraits&)) {
  std::string names;
  for (const OptimizerTraits& traits : kOptimizers) {
    if (is_meant == nullptr || is_meant(traits))
      names += (names.empty() ? "" : ", ") + std::string(traits.name);
  }
  return names;
}

OptimizerStateView::OptimizerStateView(const OptimizerTraits& traits, OptimizerParamState& state) {
  for (const OptimizerField& field : traits.state_fields(state)) {
    if (auto* const* tensor = std::get_if<at::Tensor*>(&field.value)) tensors.push_back(*tensor);
    if (auto* const* number = std::get_if<std::int64_t*>(&field.value)) numbers.push_back(*number);
  }
}

}  // namespace accel
