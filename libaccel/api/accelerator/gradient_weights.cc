#include "libaccel/api/accelerator/gradient_weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_set>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <torch/nn/module.h>

#include <accel/error.h>

#include "libaccel/engine/gradients/divided_gradients.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {
namespace {

[[noreturn]] void refuse_mixed_use(bool has_weight) {
  throw Error(ErrorCode::kInvalidArgument,
              has_weight
                  ? "this backward has a weight, and those before it in the accumulation have none"
                  : "this backward has no weight, and those before it in the accumulation have one",
              "give each backward() of an accumulation its weight, or none of them");
}

}  // namespace

void GradientWeights::check(std::optional<double> weight) {
  clearing_.clear();  // an exception may have ended the backward before
  if (weight && (!std::isfinite(*weight) || *weight < 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the weight of a micro-batch is " + std::to_string(*weight) +
                    ", expected a finite number of 0 or more",
                "give the number of its tokens that have a loss");
  }
  const bool is_mixed = kind_ == (weight ? Kind::kUnweighted : Kind::kWeighted);
  if (is_mixed) refuse_mixed_use(weight.has_value());
}

double GradientWeights::begin(double weight) {
  if (unit_ == 0) agree_on_unit(weight);
  if (weight == 0) clear_what_comes();
  return weight / unit_;
}

void GradientWeights::agree_on_unit(double weight) {
  constexpr const char* kOperation = "agreeing on the unit of weights";
  at::Tensor first = at::full({}, weight, at::kDouble);
  if (JoinRoll::current() != nullptr) {
    if (JoinRoll* const roll = JoinRoll::of_training())
      roll->announce({.call = JoinRoll::Call::kWeightUnit});
    JoinRoll::current()->group().all_reduce_(first, Reduction::kMax, kOperation);
  } else if (const auto group = prepared_.state.process_group()) {
    group->broadcast_(first, 0, kOperation);
  }
  const auto value = first.item<double>();
  unit_ = value > 0 ? std::exp2(std::floor(std::log2(value))) : 1;
}

void GradientWeights::clear_what_comes() {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto clear = [&](const at::Tensor& parameter) {
    if (parameter.requires_grad() && seen.insert(parameter.unsafeGetTensorImpl()).second)
      clearing_.push_back(interception::clearing_arriving(parameter));
  };
  for (const auto& model : prepared_.models) {
    for (const NamedParameter& parameter : trainable_parameters(*model->module()))
      clear(parameter.tensor);
  }
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) {
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) clear(parameter);
    }
  }
}

void GradientWeights::add(std::optional<double> weight, std::optional<std::int64_t> micro_batch) {
  clearing_.clear();
  kind_ = weight ? Kind::kWeighted : Kind::kUnweighted;
  if (!weight) return;
  weights_.push_back(*weight);
  places_.push_back(micro_batch.value_or(0));
}

double GradientWeights::total(const std::optional<MicroBatches>& run) const {
  // In reproducible training each rank sends its weights in their places, so that all add up the same numbers in one order.
  at::Tensor sums = at::zeros({run ? run->total : 1}, at::kDouble);
  auto* const values = sums.data_ptr<double>();
  for (std::size_t i = 0; i < weights_.size(); ++i) values[places_[i]] += weights_[i];
  if (JoinRoll* const roll = JoinRoll::of_training())
    roll->announce({.call = JoinRoll::Call::kWeightSum});
  if (const auto group = prepared_.state.process_group())
    group->all_reduce_(sums, Reduction::kSum, "adding up the weights of micro-batches");
  double total = 0;
  for (std::int64_t i = 0; i < sums.numel(); ++i) total += values[i];
  return total;
}

// Each once: of divided models the pieces, which are views of whole gradients where these are kept.
std::vector<at::Tensor> GradientWeights::gradients() const {
  std::vector<at::Tensor> gradients;
  std::unordered_set<const c10::TensorImpl*> seen;
  std::unordered_set<const c10::StorageImpl*> whole;
  const auto add = [&](const at::Tensor& parameter) {
    const at::Tensor& gradient = parameter.grad();
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) return;
    if (gradient.defined() && !sharding::is_stand_in(gradient)) gradients.push_back(gradient);
  };
  for (const auto& model : prepared_.models) {
    for (const NamedParameter& parameter : trainable_parameters(*model->module()))
      add(parameter.tensor);
  }
  for (const at::Tensor& gradient : gradients) {
    if (gradient.layout() == at::kStrided) whole.insert(gradient.storage().unsafeGetStorageImpl());
  }
  for (const AcceleratedOptimizer& optimizer : prepared_.optimizers) {
    const StepGate* const gate = Preparation::gate_of(optimizer);
    for (const auto& group : optimizer.optimizer().param_groups()) {
      for (const at::Tensor& parameter : group.params()) {
        const at::Tensor& gradient = parameter.grad();
        const bool is_view = gate != nullptr && gate->is_piece(parameter) && gradient.defined() &&
                             gradient.layout() == at::kStrided &&
                             whole.contains(gradient.storage().unsafeGetStorageImpl());
        if (!is_view) add(parameter);
      }
    }
  }
  return gradients;
}

void GradientWeights::end(const std::optional<MicroBatches>& run) {
  if (kind_ == Kind::kWeighted) {
    const double sum = total(run);
    const double num_means = run ? 1 : prepared_.state.num_processes();
    if (sum == 0) {
      prepared_.logger.warning_once(
          "all weights of an accumulation are 0, on all ranks: its gradients are zero");
    } else {
      const at::NoGradGuard no_grad;
      for (at::Tensor& gradient : gradients()) gradient.mul_(num_means * unit_ / sum);
    }
  }
  begin_anew();
}

void GradientWeights::take_part_in_end() {
  kind_ = Kind::kWeighted;
  end(std::nullopt);
}

void GradientWeights::begin_anew() noexcept {
  kind_ = Kind::kNone;
  weights_.clear();
  places_.clear();
  clearing_.clear();
}

}  // namespace accel::detail
