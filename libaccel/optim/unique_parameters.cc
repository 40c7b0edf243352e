#include "libaccel/optim/unique_parameters.h"

#include <cstddef>
#include <string>
#include <unordered_set>
#include <utility>

#include <torch/optim/lbfgs.h>

#include <accel/error.h>

namespace accel {
namespace {

using Seen = std::unordered_set<const c10::TensorImpl*>;

std::vector<at::Tensor> unseen(const std::vector<at::Tensor>& parameters, Seen& seen) {
  std::vector<at::Tensor> unique;
  unique.reserve(parameters.size());
  for (const at::Tensor& parameter : parameters) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) unique.push_back(parameter);
  }
  return unique;
}

bool is_lbfgs_that_stepped(const torch::optim::Optimizer& optimizer) {
  for (const auto& [parameter, state] : optimizer.state()) {
    const auto* lbfgs = dynamic_cast<const torch::optim::LBFGSParamState*>(state.get());
    if (lbfgs != nullptr && lbfgs->func_evals() > 0) return true;
  }
  return false;
}

}  // namespace

std::vector<at::Tensor> unique_parameters(const std::vector<at::Tensor>& parameters) {
  Seen seen;
  return unseen(parameters, seen);
}

std::vector<std::vector<at::Tensor>> unique_groups(const torch::optim::Optimizer& optimizer) {
  Seen seen;
  std::vector<std::vector<at::Tensor>> groups;
  for (const auto& group : optimizer.param_groups()) groups.push_back(unseen(group.params(), seen));
  return groups;
}

void remove_repeated_parameters(torch::optim::Optimizer& optimizer) {
  std::vector<std::vector<at::Tensor>> unique = unique_groups(optimizer);
  auto& groups = optimizer.param_groups();
  for (std::size_t g = 0; g < groups.size(); ++g) {
    std::vector<at::Tensor>& listed = groups[g].params();
    if (unique[g].size() == listed.size()) continue;
    if (is_lbfgs_that_stepped(optimizer)) {
      throw Error(ErrorCode::kUnsupported,
                  "an LBFGS that has stepped lists " +
                      std::to_string(listed.size() - unique[g].size()) + " of " +
                      std::to_string(listed.size()) + " parameters of group " + std::to_string(g) +
                      " again: its history counts them twice",
                  "call prepare() before the first step, or construct it with each tied parameter "
                  "once");
    }
    listed = std::move(unique[g]);
  }
}

}  // namespace accel
