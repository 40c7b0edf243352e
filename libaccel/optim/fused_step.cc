// Runs are found anew in every step: which parameters have gradients, where these lie, and what a checkpoint put into
// the states may change between two steps, and finding out costs a few comparisons for each parameter. States that do
// not lie as their parameters do (after load_state(), or when runs have changed) are moved into a tensor that does.

#include "libaccel/optim/fused_step.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/full.h>
#include <c10/util/Type.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>

#include "libaccel/alignment.h"
#include "libaccel/large_tensor.h"

namespace accel {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr std::int64_t kPadding = 64;  // bytes; a vector register of any processor divides it

struct Member {
  at::Tensor parameter;
  at::Tensor gradient;  // laid out as the parameter
  OptimizerParamState* state = nullptr;
  std::int64_t span = 0;      // elements up to where a next parameter may begin
  std::int64_t offset = 0;    // elements from the start of the run
  std::int64_t progress = 0;  // what members of a run have in common: the number of steps so far
};

using Run = std::vector<Member>;

std::int64_t span_of(const Run& run) {
  return run.back().offset + run.back().span;
}

// `span` elements from the start of a tensor on.
at::Tensor flat(const at::Tensor& tensor, std::int64_t span) {
  return tensor.detach().as_strided({span}, {1}, tensor.storage_offset());
}

bool has_room(const at::Tensor& tensor, std::int64_t span) {
  const auto end = static_cast<std::size_t>(tensor.storage_offset() + span) * tensor.element_size();
  return end <= tensor.storage().nbytes();
}

bool follows(const at::Tensor& next, const at::Tensor& first, std::int64_t offset) {
  return next.storage().unsafeGetStorageImpl() == first.storage().unsafeGetStorageImpl() &&
         next.storage_offset() == first.storage_offset() + offset;
}

at::Tensor gradient_like(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.strides() == parameter.strides()) return gradient;
  return at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options())
      .copy_(gradient);
}

void check_steppable(const at::Tensor& parameter) {
  const char* fault = nullptr;
  if (parameter.grad().is_sparse()) {
    fault = "a sparse gradient";
  } else if (!at::isFloatingType(parameter.scalar_type())) {
    fault = "elements that are no real numbers";
  } else if (!parameter.is_non_overlapping_and_dense()) {
    fault = "gaps in its memory";
  }
  if (fault == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              "a parameter of " + std::to_string(parameter.numel()) + " elements has " + fault +
                  ", which fused kernels cannot step",
              "leave use_fused_kernels() out for this optimizer");
}

Member make_member(const at::Tensor& parameter, const FusedStep::IsPadded& is_padded) {
  Member member{.parameter = parameter, .gradient = gradient_like(parameter)};
  member.span = parameter.numel();
  const std::int64_t block = kPadding / static_cast<std::int64_t>(parameter.element_size());
  const std::int64_t padded = rounded_up(member.span, block);
  if (is_padded(parameter) && has_room(parameter, padded) && has_room(member.gradient, padded)) {
    member.span = padded;
  }
  return member;
}

bool continues(const Run& run, const Member& next) {
  const std::int64_t end = span_of(run);
  return next.parameter.scalar_type() == run.front().parameter.scalar_type() &&
         next.progress == run.front().progress &&
         follows(next.parameter, run.front().parameter, end) &&
         follows(next.gradient, run.front().gradient, end);
}

std::vector<Run> runs_of(std::vector<Member> members) {
  std::sort(members.begin(), members.end(), [](const Member& a, const Member& b) {
    return std::less<>{}(a.parameter.const_data_ptr(), b.parameter.const_data_ptr());
  });
  std::vector<Run> runs;
  for (Member& member : members) {
    if (!runs.empty() && continues(runs.back(), member)) {
      member.offset = span_of(runs.back());
    } else {
      runs.emplace_back();
    }
    runs.back().push_back(std::move(member));
  }
  return runs;
}

// One field of the states of a run as one tensor: the one that they are parts of, else a new one, zero where a state
// had nothing.
template <typename Field>
at::Tensor flat_field(const Run& run, Field field) {
  const std::int64_t span = span_of(run);
  const at::Tensor& first = field(run.front());
  const bool is_laid_out = std::all_of(run.begin(), run.end(), [&](const Member& member) {
    const at::Tensor& part = field(member);
    return part.defined() && part.strides() == member.parameter.strides() &&
           follows(part, first, member.offset);
  });
  if (is_laid_out && has_room(first, span)) return flat(first, span);
  at::Tensor whole = empty_large_tensor({span}, run.front().parameter.options()).zero_();
  for (const Member& member : run) {
    at::Tensor part =
        whole.as_strided(member.parameter.sizes(), member.parameter.strides(), member.offset);
    at::Tensor& present = field(member);
    if (present.defined()) part.copy_(present);
    present = std::move(part);
  }
  return whole;
}

template <typename State>
State* state_of(Optimizer& optimizer, const at::Tensor& parameter) {
  const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
  return found == optimizer.state().end() ? nullptr : &dynamic_cast<State&>(*found->second);
}

template <typename State>
State& make_state(Optimizer& optimizer, const at::Tensor& parameter) {
  auto& state = optimizer.state()[parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = std::make_unique<State>();
  return dynamic_cast<State&>(*state);
}

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

template <typename State, typename Options, FusedAdam kernel>
struct AdamRule {
  static std::int64_t progress(Optimizer& optimizer,
                               const OptimizerOptions&,
                               const at::Tensor& parameter) {
    const State* state = state_of<State>(optimizer, parameter);
    return state == nullptr ? 0 : state->step();
  }

  static void step(Optimizer& optimizer, const OptimizerOptions& group, Run& run) {
    const auto& options = dynamic_cast<const Options&>(group);
    for (Member& member : run) {
      State& state = make_state<State>(optimizer, member.parameter);
      state.step(state.step() + 1);
      member.state = &state;
    }
    const auto field = [&run](auto get) {
      return flat_field(run, [get](const Member& member) -> at::Tensor& {
        return get(static_cast<State&>(*member.state));
      });
    };
    const std::int64_t span = span_of(run);
    at::Tensor mean = field([](State& state) -> at::Tensor& { return state.exp_avg(); });
    at::Tensor square = field([](State& state) -> at::Tensor& { return state.exp_avg_sq(); });
    std::vector<at::Tensor> largest;
    if (options.amsgrad()) {
      largest.push_back(field([](State& state) -> at::Tensor& { return state.max_exp_avg_sq(); }));
    }
    if (span == 0) return;
    const auto [beta1, beta2] = options.betas();
    const at::Tensor steps = at::full({},
                                      static_cast<double>(run.front().progress + 1),
                                      run.front().parameter.options().dtype(at::kFloat));
    kernel({flat(run.front().parameter, span)},
           {flat(run.front().gradient, span)},
           {mean},
           {square},
           largest,
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

struct SgdRule {
  using State = torch::optim::SGDParamState;

  // Whether there is a buffer: the first gradient becomes it.
  static std::int64_t progress(Optimizer& optimizer,
                               const OptimizerOptions& group,
                               const at::Tensor& parameter) {
    if (dynamic_cast<const torch::optim::SGDOptions&>(group).momentum() == 0) return 0;
    const State* state = state_of<State>(optimizer, parameter);
    return state != nullptr && state->momentum_buffer().defined() ? 1 : 0;
  }

  static void step(Optimizer& optimizer, const OptimizerOptions& group, Run& run) {
    const auto& options = dynamic_cast<const torch::optim::SGDOptions&>(group);
    std::vector<at::Tensor> buffers;
    if (options.momentum() != 0) {
      for (Member& member : run) member.state = &make_state<State>(optimizer, member.parameter);
      buffers.push_back(flat_field(run, [](const Member& member) -> at::Tensor& {
        return static_cast<State&>(*member.state).momentum_buffer();
      }));
    }
    const std::int64_t span = span_of(run);
    if (span == 0) return;
    at::_fused_sgd_({flat(run.front().parameter, span)},
                    {flat(run.front().gradient, span)},
                    buffers,
                    options.weight_decay(),
                    options.momentum(),
                    options.lr(),
                    options.dampening(),
                    options.nesterov(),
                    /*maximize=*/false,
                    /*is_first_step=*/run.front().progress == 0);
  }
};

// What differs between the optimizers.
struct Rule {
  const std::type_info* type;
  std::int64_t (*progress)(Optimizer&, const OptimizerOptions&, const at::Tensor&);
  void (*step)(Optimizer&, const OptimizerOptions&, Run&);
};

template <typename O, typename R>
Rule rule_of() {
  return {&typeid(O), &R::progress, &R::step};
}

const Rule* find_rule(const Optimizer& optimizer) {
  using namespace torch::optim;  // NOLINT: the list below
  static const Rule kRules[] = {
      rule_of<SGD, SgdRule>(),
      rule_of<Adam, AdamRule<AdamParamState, AdamOptions, FusedAdam{&at::_fused_adam_}>>(),
      rule_of<AdamW, AdamRule<AdamWParamState, AdamWOptions, FusedAdam{&at::_fused_adamw_}>>(),
  };
  for (const Rule& rule : kRules) {
    if (*rule.type == typeid(optimizer)) return &rule;
  }
  return nullptr;
}

}  // namespace

FusedStep::FusedStep(Optimizer& optimizer) : optimizer_(optimizer) {
  if (find_rule(optimizer) != nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              "there is no fused kernel for an optimizer of type " +
                  c10::demangle(typeid(optimizer).name()) + ": it is none of SGD, Adam, AdamW",
              "leave use_fused_kernels() out for this optimizer");
}

void FusedStep::step(const IsPadded& is_padded) {
  const at::NoGradGuard no_grad;
  const Rule& rule = *find_rule(optimizer_);
  std::vector<std::vector<Run>> runs;
  for (auto& group : optimizer_.param_groups()) {
    std::vector<Member> members;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      check_steppable(parameter);
      members.push_back(make_member(parameter, is_padded));
      members.back().progress = rule.progress(optimizer_, group.options(), parameter);
    }
    runs.push_back(runs_of(std::move(members)));
  }
  num_runs_ = 0;
  for (std::size_t g = 0; g < runs.size(); ++g) {
    const OptimizerOptions& options = std::as_const(optimizer_.param_groups()[g]).options();
    for (Run& run : runs[g]) rule.step(optimizer_, options, run);
    num_runs_ += runs[g].size();
  }
}

}  // namespace accel
