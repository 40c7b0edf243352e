#include "libaccel/tensors/parameter_list.h"

#include <optional>
#include <utility>

#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <accel/error.h>

namespace accel {
namespace {

bool has_sparse_gradients(const torch::nn::Module& module) {
  if (const auto* embedding = module.as<torch::nn::EmbeddingImpl>()) {
    return embedding->options.sparse();
  }
  if (const auto* bag = module.as<torch::nn::EmbeddingBagImpl>()) return bag->options.sparse();
  return false;
}

std::optional<std::string> added_parameter(
    const torch::nn::Module& module, const std::unordered_set<const c10::TensorImpl*>& known) {
  for (const auto& item : module.named_parameters(/*recurse=*/false)) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && tensor.requires_grad() && !known.contains(tensor.unsafeGetTensorImpl()))
      return item.key();
  }
  for (const auto& child : module.named_children()) {
    const auto added = added_parameter(*child.value(), known);
    if (added) return child.key() + "." + *added;
  }
  return std::nullopt;
}

}  // namespace

void refuse_added_parameters(const torch::nn::Module& module,
                             const std::unordered_set<const c10::TensorImpl*>& known) {
  const auto added = added_parameter(module, known);
  if (!added) return;
  throw Error(ErrorCode::kUnsupported,
              "the parameter " + *added +
                  " was added or unfrozen after prepare(): it would not be trained alike on all "
                  "ranks",
              "register and unfreeze parameters before prepare()");
}

void for_each_parameter(const torch::nn::Module& module, const ParameterVisit& visit) {
  std::unordered_set<const c10::TensorImpl*> seen;
  const auto visit_those_of = [&](const std::string& prefix, const torch::nn::Module& owner) {
    for (const auto& item : owner.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = item.value();
      if (!tensor.defined() || !seen.insert(tensor.unsafeGetTensorImpl()).second) continue;
      visit(prefix.empty() ? item.key() : prefix + "." + item.key(), tensor, owner);
    }
  };
  visit_those_of("", module);
  for (const auto& item : module.named_modules("", /*include_self=*/false)) {
    visit_those_of(item.key(), *item.value());
  }
}

std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  for_each_parameter(
      module,
      [&](const std::string& name, const at::Tensor& tensor, const torch::nn::Module& owner) {
        if (tensor.requires_grad())
          parameters.push_back({name, tensor, has_sparse_gradients(owner)});
      });
  return parameters;
}

}  // namespace accel
