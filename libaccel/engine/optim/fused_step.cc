// Runs are found anew in every step: which parameters have gradients, where these lie, and what a checkpoint put into
// the states may change between two steps, and finding out costs a few comparisons for each parameter. States that do
// not lie as their parameters do (after load_state(), or when runs have changed) are moved into a tensor that does.

#include "libaccel/engine/optim/fused_step.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/SmallVector.h>
#include <c10/util/Type.h>

#include <accel/error.h>

#include "libaccel/tensors/alignment.h"
#include "libaccel/tensors/large_tensor.h"
#include "libaccel/tensors/optimizer_traits.h"

namespace accel {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

constexpr std::int64_t kPadding = 64;  // bytes; a vector register of any processor divides it

struct Member {
  at::Tensor parameter;
  at::Tensor gradient;                      // laid out as the parameter
  c10::SmallVector<at::Tensor*, 3> fields;  // of its state, those that the kernel wants
  std::int64_t span = 0;                    // elements up to where a next parameter may begin
  std::int64_t offset = 0;                  // elements from the start of the run
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

// One tensor of the states of a run as one: the one that they are parts of, else a new one, zero where a state had nothing.
at::Tensor flat_field(const Run& run, std::size_t field) {
  const std::int64_t span = span_of(run);
  const at::Tensor& first = *run.front().fields[field];
  const bool is_laid_out = std::all_of(run.begin(), run.end(), [&](const Member& member) {
    const at::Tensor& part = *member.fields[field];
    return part.defined() && part.strides() == member.parameter.strides() &&
           follows(part, first, member.offset);
  });
  if (is_laid_out && has_room(first, span)) return flat(first, span);
  at::Tensor whole = empty_large_tensor({span}, run.front().parameter.options()).zero_();
  for (const Member& member : run) {
    at::Tensor part =
        whole.as_strided(member.parameter.sizes(), member.parameter.strides(), member.offset);
    at::Tensor& present = *member.fields[field];
    if (present.defined()) part.copy_(present);
    present = std::move(part);
  }
  return whole;
}

// The number of steps so far; where the class does not count them, 1 when there is what the first one makes.
std::int64_t progress_of(const OptimizerTraits& traits,
                         const std::vector<bool>& is_made,
                         OptimizerParamState* state) {
  if (state == nullptr) return 0;
  const OptimizerStateView view(traits, *state);
  if (!view.numbers.empty()) return *view.numbers.front();
  for (std::size_t f = 0; f < is_made.size(); ++f) {
    if (is_made[f] && view.tensors[f]->defined()) return 1;
  }
  return 0;
}

// Makes the state if there is none, counts the step, and points at what the kernel wants of it.
void begin_step(const OptimizerTraits& traits,
                const std::vector<bool>& is_made,
                Optimizer& optimizer,
                Member& member) {
  auto& state = optimizer.state()[member.parameter.unsafeGetTensorImpl()];
  if (state == nullptr) state = traits.make_state();
  const OptimizerStateView view(traits, *state);
  if (!view.numbers.empty()) ++*view.numbers.front();
  for (std::size_t f = 0; f < is_made.size(); ++f) {
    if (is_made[f]) member.fields.push_back(view.tensors[f]);
  }
}

void step_run(const OptimizerTraits& traits,
              Optimizer& optimizer,
              const OptimizerOptions& options,
              Run& run) {
  const std::vector<bool> is_made = traits.makes_tensors(options);
  const auto num_fields =
      static_cast<std::size_t>(std::count(is_made.begin(), is_made.end(), true));
  if (num_fields > 0) {
    for (Member& member : run) begin_step(traits, is_made, optimizer, member);
  }
  FusedRun whole{.num_steps = run.front().progress};
  for (std::size_t f = 0; f < num_fields; ++f) whole.states.push_back(flat_field(run, f));
  const std::int64_t span = span_of(run);
  if (span == 0) return;
  whole.parameter = flat(run.front().parameter, span);
  whole.gradient = flat(run.front().gradient, span);
  traits.fused_step(options, whole);
}

bool has_fused_step(const OptimizerTraits& traits) {
  return traits.fused_step != nullptr;
}

}  // namespace

FusedStep::FusedStep(Optimizer& optimizer) : optimizer_(optimizer) {
  const OptimizerTraits* const traits = traits_of(optimizer);
  if (traits != nullptr && has_fused_step(*traits)) return;
  throw Error(ErrorCode::kUnsupported,
              "there is no fused kernel for an optimizer of type " +
                  c10::demangle(typeid(optimizer).name()) + ": it is none of " +
                  optimizer_names(&has_fused_step),
              "leave use_fused_kernels() out for this optimizer");
}

void FusedStep::step(const IsPadded& is_padded) {
  const at::NoGradGuard no_grad;
  const OptimizerTraits& traits = *traits_of(optimizer_);
  const auto& states = optimizer_.state();
  std::vector<std::vector<Run>> runs;
  for (auto& group : optimizer_.param_groups()) {
    std::vector<Member> members;
    const std::vector<bool> is_made = traits.makes_tensors(group.options());
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      check_steppable(parameter);
      members.push_back(make_member(parameter, is_padded));
      const auto state = states.find(parameter.unsafeGetTensorImpl());
      members.back().progress =
          progress_of(traits, is_made, state == states.end() ? nullptr : state->second.get());
    }
    runs.push_back(runs_of(std::move(members)));
  }
  num_runs_ = 0;
  for (std::size_t g = 0; g < runs.size(); ++g) {
    const OptimizerOptions& options = std::as_const(optimizer_.param_groups()[g]).options();
    for (Run& run : runs[g]) step_run(traits, optimizer_, options, run);
    num_runs_ += runs[g].size();
  }
}

}  // namespace accel
