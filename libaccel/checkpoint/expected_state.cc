#include "libaccel/checkpoint/expected_state.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include "libaccel/optim/unique_parameters.h"

namespace accel::checkpoint {
namespace {

// Tensors of a parameter's size. Asked of the options, which have a type for each optimizer.
std::uint64_t tensors_for(const torch::optim::OptimizerOptions& options) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options))
    return sgd->momentum() != 0 ? 1 : 0;
  if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return adam->amsgrad() ? 3 : 2;
  if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return adamw->amsgrad() ? 3 : 2;
  if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(&options))
    return 1 + (rmsprop->momentum() > 0 ? 1 : 0) + (rmsprop->centered() ? 1 : 0);
  return 0;
}

}  // namespace

std::uint64_t expected_state_bytes(const torch::optim::Optimizer& optimizer) {
  std::uint64_t bytes = 0;
  const auto groups = unique_groups(optimizer);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const std::uint64_t tensors = tensors_for(optimizer.param_groups()[g].options());
    for (const at::Tensor& parameter : groups[g]) {
      const bool has_state = optimizer.state().count(parameter.unsafeGetTensorImpl()) > 0;
      if (has_state || !parameter.requires_grad()) continue;
      bytes += tensors * static_cast<std::uint64_t>(parameter.numel()) *
               static_cast<std::uint64_t>(parameter.element_size());
    }
  }
  return bytes;
}

}  // namespace accel::checkpoint
