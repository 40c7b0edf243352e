// ArchivedOptimizer: an optimizer of a class of the user's own, as what it writes into its archive.
//
// Nothing is known of such a class but LibTorch's interface: save() and load() of the optimizer, and serialize() of the states
// and options. A state that is serialized is a list of names with numbers, texts and tensors; here it is kept as that, so that
// a checkpoint names and divides the tensors as those of LibTorch's own optimizers, and each state goes to whichever rank has
// its parameter. The optimizer itself reads them back, from an archive made of what was kept.
//
// Limits:   save() and load() have to be what torch::optim::serialize<State, Options>(archive, *this) does.
// Threads:  the thread that trains.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include "libaccel/engine/checkpoint/states/optimizer_state.h"

namespace accel::checkpoint {

// What one serialize() wrote. Tensors may be placeholders without data.
struct ArchivedFields {
  std::string values = "{}";  // JSON object: what is no tensor
  std::map<std::string, at::Tensor> tensors;
};

struct ArchivedState final : torch::optim::OptimizerCloneableParamState<ArchivedState> {
  ArchivedFields fields;
};

// Holds groups, options and states; takes no steps.
class ArchivedOptimizer final : public torch::optim::Optimizer {
 public:
  // Options as in `optimizer`, on the parameters `groups`, without states. Errors  throws kUnsupported, naming the type: its
  // save() writes something else than states and groups, or its options have something that cannot be kept.
  ArchivedOptimizer(torch::optim::Optimizer& optimizer,
                    std::vector<std::vector<at::Tensor>> groups);
  torch::Tensor step(LossClosure closure) override;  // throws kUnsupported

  [[nodiscard]] const std::string& type() const noexcept { return type_; }
  // Of a group, a JSON object.
  [[nodiscard]] std::string& options_of(std::size_t group) { return options_.at(group); }

 private:
  std::string type_;
  std::vector<std::string> options_;
};

// Errors  throws kUnsupported, naming the field of `what`, for what cannot be kept: archives within archives, lists of tensors.
[[nodiscard]] ArchivedFields fields_of(const torch::optim::OptimizerParamState& state,
                                       const std::string& what);

// Replaces the states of `optimizer` by those of `archived`, whose groups have the same numbers of parameters in the same
// order, and its options. Errors  throws kUnsupported: its load() took another number of states; what load() throws.
void load_archived(torch::optim::Optimizer& optimizer, ArchivedOptimizer& archived);

// As save_optimizer() and prepare_optimizer_load(). The former of an optimizer with placeholders.
[[nodiscard]] SavedOptimizer save_archived(ArchivedOptimizer& optimizer,
                                           const ParameterNames& names);
// Gives `archived` what was saved; the returned function is called with it later.
void read_archived(ArchivedOptimizer& archived,
                   const ParameterNames& names,
                   SavedOptimizer saved,
                   const std::string& what);

// With the states of `optimizer`, which is of a class of the user's own.
[[nodiscard]] std::unique_ptr<ArchivedOptimizer> archive_of(torch::optim::Optimizer& optimizer);

}  // namespace accel::checkpoint
