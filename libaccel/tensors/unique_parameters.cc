#include "libaccel/tensors/unique_parameters.h"

#include <cstddef>
#include <string>
#include <typeinfo>
#include <unordered_set>
#include <utility>

#include <c10/util/Type.h>

#include <accel/error.h>

#include "libaccel/tensors/archive_form.h"
#include "libaccel/tensors/optimizer_traits.h"

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

// The class of a state over all parameters that has stepped; nullptr: there is none.
const OptimizerTraits* stepped_over_all(torch::optim::Optimizer& optimizer) {
  for (const auto& [parameter, state] : optimizer.state()) {
    const OptimizerTraits* const traits = state == nullptr ? nullptr : traits_of(*state);
    if (traits == nullptr || has_state_by_parameter(*traits)) continue;
    if (*OptimizerStateView(*traits, *state).numbers.front() > 0) return traits;
  }
  return nullptr;
}

// Throws for states that would be of other parameters, or too long, when what is repeated in group `g` is taken out.
void refuse_histories(torch::optim::Optimizer& optimizer, std::size_t g, std::size_t num_unique) {
  const std::size_t num_listed = optimizer.param_groups()[g].params().size();
  const std::string repeats = " lists " + std::to_string(num_listed - num_unique) + " of " +
                              std::to_string(num_listed) + " parameters of group " +
                              std::to_string(g) + " again";
  if (const OptimizerTraits* const traits = stepped_over_all(optimizer)) {
    throw Error(ErrorCode::kUnsupported,
                std::string("an ") + traits->name + " that has stepped" + repeats +
                    ": its history counts them twice",
                "call prepare() before the first step, or construct it with each tied parameter "
                "once");
  }
  if (const auto why = why_unusual(optimizer)) {
    throw Error(ErrorCode::kUnsupported,
                "an optimizer of type " + c10::demangle(typeid(optimizer).name()) + repeats +
                    ", and may keep its states by place in that list: " + *why,
                "construct it with each tied parameter once; or keep its states in state() and "
                "override its save() by torch::optim::serialize<State, Options>(archive, *this)");
  }
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
  const auto is_shorter = [&](std::size_t g) {
    return unique[g].size() < groups[g].params().size();
  };
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (!is_shorter(g)) continue;
    refuse_histories(optimizer, g, unique[g].size());
    break;
  }
  for (std::size_t g = 0; g < groups.size(); ++g) {
    if (is_shorter(g)) groups[g].params() = std::move(unique[g]);
  }
}

}  // namespace accel
