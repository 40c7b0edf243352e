#include "libaccel/optim/gradient_clipping.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

namespace accel {
namespace {

constexpr double kDivisorGuard = 1e-6;  // as in Python

std::vector<at::Tensor> gradients_of(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> gradients;
  gradients.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  return gradients;
}

}  // namespace

at::Tensor clip_gradient_norm_(const std::vector<at::Tensor>& parameters,
                               double max_norm,
                               double norm_type) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients = gradients_of(parameters);
  if (gradients.empty()) return at::zeros({});
  std::vector<at::Tensor> norms;
  norms.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients) {
    norms.push_back(at::linalg_vector_norm(gradient, norm_type).to(gradients[0].device()));
  }
  const at::Tensor total = at::linalg_vector_norm(at::stack(norms), norm_type);
  // Multiplying by a clamped factor instead of branching on it keeps the device running ahead.
  const at::Tensor factor = (max_norm / (total + kDivisorGuard)).clamp_max(1.0);
  for (at::Tensor& gradient : gradients) gradient.mul_(factor.to(gradient.device()));
  return total;
}

void clip_gradient_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& gradient : gradients_of(parameters)) gradient.clamp_(-clip_value, clip_value);
}

}  // namespace accel
