#include "libaccel/engine/optim/gradient_clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "libaccel/engine/optim/state_file.h"
#include "libaccel/engine/process/process_group.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

constexpr double kDivisorGuard = 1e-6;  // as in Python

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : unique_parameters(parameters)) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

at::Tensor norm_of(const std::vector<at::Tensor>& gradients, double norm_type) {
  if (gradients.empty()) return at::zeros({});
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) {
    const auto on_disk = StateRange::of(gradient);
    if (on_disk) on_disk->fetch(StateRange::Access::kRead);
    norms.push_back(at::linalg_vector_norm(gradient, norm_type).to(gradients[0].device()));
    if (on_disk) on_disk->drop();
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

void scale_to(std::vector<at::Tensor>& gradients, const at::Tensor& total, double max_norm) {
  // Multiplying by a clamped factor instead of branching on it keeps the device running ahead.
  const at::Tensor factor = clipping_factor(total, max_norm);
  if (factor.is_cpu() && factor.item<double>() == 1.0) return;  // gradients stay as they landed
  for (at::Tensor& gradient : gradients) {
    gradient.mul_(factor.to(gradient.device()));
    if (const auto on_disk = StateRange::of(gradient)) on_disk->store();
  }
}

}  // namespace

at::Tensor clipping_factor(const at::Tensor& norm, double max_norm) {
  // Python divides a number by a tensor so, which rounds twice.
  return (norm + kDivisorGuard).reciprocal().mul_(max_norm).clamp_max_(1.0);
}

at::Tensor clip_gradient_norm_(const std::vector<at::Tensor>& parameters,
                               double max_norm,
                               double norm_type) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  const at::Tensor total = norm_of(gradients, norm_type);
  scale_to(gradients, total, max_norm);
  return total;
}

at::Tensor clip_gradient_norm_(const std::vector<at::Tensor>& own,
                               const std::vector<at::Tensor>& shared,
                               double max_norm,
                               double norm_type,
                               const std::function<at::Tensor(const at::Tensor&)>& combine) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(own);
  const std::vector<at::Tensor> whole = gradients_of(shared);
  at::Tensor total = combine(norm_of(gradients, norm_type));
  if (!whole.empty()) {
    total = at::linalg_vector_norm(at::stack({total, norm_of(whole, norm_type)}), norm_type);
  }
  gradients.insert(gradients.end(), whole.begin(), whole.end());
  scale_to(gradients, total, max_norm);
  return total;
}

void clip_gradients_to_(const std::vector<at::Tensor>& parameters,
                        const at::Tensor& norm,
                        double max_norm) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  scale_to(gradients, norm, max_norm);
}

at::Tensor combined_norm(std::span<const std::shared_ptr<ProcessGroup>> groups,
                         const at::Tensor& norm,
                         double norm_type) {
  // A rank without a part does not know the type of the others'.
  at::Tensor is_double =
      at::full({}, norm.scalar_type() == at::kDouble, norm.options().dtype(at::kDouble));
  at::Tensor total = norm.to(at::kDouble);
  for (const auto& group : groups) {
    const at::Tensor all =
        group->all_gather(at::stack({total, is_double}), "clipping gradients by their norm");
    total = at::linalg_vector_norm(all.select(1, 0), norm_type);
    is_double = all.select(1, 1).max();
  }
  // Nobody waits for a device to learn it.
  if (!norm.is_cpu()) return total.to(norm.scalar_type());
  return total.to(is_double.item<double>() != 0 ? at::kDouble : at::kFloat);
}

void clip_gradient_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients_of(parameters)) gradient.clamp_(-clip_value, clip_value);
}

}  // namespace accel
