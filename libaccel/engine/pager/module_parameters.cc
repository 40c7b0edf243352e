#include "libaccel/engine/pager/module_parameters.h"

#include <string>

#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/passes/tensorexpr_fuser.h>
#include <torch/csrc/jit/runtime/graph_executor.h>
#include <torch/nn/module.h>

#include <accel/error.h>

namespace accel::pager {
namespace {

// Tensors that freezing put into the code: constants of a floating type, which scripts hardly ever have otherwise, in a
// module that lacks the attribute every other one has.
bool is_frozen(const torch::jit::Module& module) {
  return !module.hasattr("training");
}

void refuse_frozen(const torch::jit::Module& module, const std::string& name) {
  if (is_frozen(module))
    throw Error(
        ErrorCode::kUnsupported,
        "the TorchScript module '" + name + "' is frozen: its parameters are constants of its code",
        "page the module as it was before torch.jit.freeze");
  for (const auto& child : module.named_children())
    refuse_frozen(child.value, name.empty() ? child.name : name + "." + child.name);
}

}  // namespace

std::vector<NamedTensor> parameters_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> parameters;
  for (const auto& parameter : module.named_parameters())
    if (parameter.value().defined()) parameters.push_back({parameter.key(), parameter.value()});
  return parameters;
}

std::vector<NamedTensor> parameters_of(const torch::jit::Module& module) {
  const auto type = module.type()->name();
  refuse_frozen(module, type ? type->name() : "");
  torch::jit::setTensorExprFuserEnabled(false);
  std::vector<NamedTensor> parameters;
  for (const auto& parameter : module.named_parameters())
    parameters.push_back({parameter.name, parameter.value});
  return parameters;
}

}  // namespace accel::pager
