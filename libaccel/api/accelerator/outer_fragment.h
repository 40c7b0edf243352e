// OuterFragment: the global copy of some parameters of a model, and the outer optimizer that steps it (accel/diloco.h).
//
// The copy is in fp32 where the parameters have 16 bits, so that small steps are not lost.
//
// Threads:  the thread that trains.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/diloco.h>
#include <accel/state_dict.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {

class OuterFragment {
 public:
  // The copy begins as this rank's parameters. Throws kInvalidArgument where the optimizer is nullptr, kUnsupported for one that
  // cannot be saved, and for parameters that are no real numbers.
  OuterFragment(std::vector<NamedParameter> parameters, const OuterOptimizer& make_optimizer);

  // [n] global - own, of one parameter after the other, in fp32 or wider.
  [[nodiscard]] at::Tensor outer_gradient() const;
  // Steps the copy by such a gradient, and mixes alpha of the rank's own parameters into what these become.
  void merge(const at::Tensor& outer_gradient, double alpha);
  // The parameters become the copy.
  void reset_parameters();

  [[nodiscard]] const std::vector<NamedParameter>& parameters() const noexcept {
    return parameters_;
  }
  // The kind and the options of the optimizer, as text.
  [[nodiscard]] std::string describe_optimizer() const;

  // Under names that begin with `prefix`.
  void save(const std::string& prefix, StateDict& state) const;
  // Checks everything; what it returns puts it into place, and cannot fail. Throws kCheckpointMismatch.
  [[nodiscard]] std::function<void()> prepare_load(const std::string& prefix,
                                                   const StateDict& state);

 private:
  std::vector<NamedParameter> parameters_;
  std::vector<at::Tensor> globals_;
  at::ScalarType exchanged_;  // dtype of an outer gradient
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
};

// Tensors of an optimizer in a StateDict, under names that begin with `prefix`; the rest as a text under `prefix` itself.
void save_optimizer_to(const std::string& prefix,
                       torch::optim::Optimizer& optimizer,
                       const std::vector<torch::nn::Module*>& models,
                       StateDict& state);
// As prepare_load(). what: names the optimizer in messages.
[[nodiscard]] std::function<void()> prepare_optimizer_load_from(
    const std::string& prefix,
    torch::optim::Optimizer& optimizer,
    const std::vector<torch::nn::Module*>& models,
    const StateDict& state,
    const std::string& what);

// Copies into `target`, once the returned function is called. Throws kCheckpointMismatch unless `saved` has its shape.
[[nodiscard]] std::function<void()> prepare_copy(const std::string& name,
                                                 const at::Tensor& target,
                                                 const at::Tensor& saved);

}  // namespace accel::detail
