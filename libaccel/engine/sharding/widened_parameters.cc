#include "libaccel/engine/sharding/widened_parameters.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <accel/logging.h>

#include "libaccel/engine/construction/tensor_memory.h"
#include "libaccel/engine/homes/parameter_claim.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::sharding {
namespace {

// "a, b, c and 3 more".
std::string some_of(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > kShown) text += " and " + std::to_string(names.size() - kShown) + " more";
  return text;
}

}  // namespace

void widen_parameters(const torch::nn::Module& module) {
  const at::NoGradGuard no_grad;
  const std::vector<NamedParameter> parameters = trainable_parameters(module);
  std::unordered_map<const void*, int> num_tensors;  // by memory
  for (const NamedParameter& parameter : parameters) {
    if (parameter.tensor.has_storage())
      ++num_tensors[parameter.tensor.storage().unsafeGetStorageImpl()];
  }
  std::vector<std::string> names;
  for (const NamedParameter& parameter : parameters) {
    const at::Tensor& tensor = parameter.tensor;
    if (!at::isReducedFloatingType(tensor.scalar_type()) || !tensor.has_storage()) continue;
    if (num_tensors[tensor.storage().unsafeGetStorageImpl()] > 1) continue;
    if (ParameterClaim::was_divided(tensor)) continue;
    construction::give_memory(tensor, tensor.detach().to(at::kFloat));
    names.push_back(parameter.name);
  }
  if (names.empty()) return;
  static const Logger logger = get_logger("accel.sharding");
  logger.warning(
      "parameters of 16 bits became fp32, for mixed_precision is on; checkpoints have them so: " +
      some_of(names));
}

}  // namespace accel::sharding
