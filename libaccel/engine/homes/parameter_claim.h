// ParameterClaim: a parameter is divided by one model at a time, and an optimizer works on the shards of a model that lives.
//
// A second ShardedModel over the same parameters would take the gradients away from the first one; an optimizer that still
// has the pieces of a model that is gone would train memory that nobody reads. Neither shows by itself, so both are told
// here, for the whole process.
//
// Threads:  any.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel::sharding {

class ParameterClaim {
 public:
  // Throws kUnsupported naming a parameter that another claim has.
  explicit ParameterClaim(const std::vector<NamedParameter>& parameters);
  ~ParameterClaim();
  ParameterClaim(const ParameterClaim&) = delete;
  ParameterClaim& operator=(const ParameterClaim&) = delete;

  // The parameters lie in the memory of units from now on; before, the end of the claim leaves no trace.
  void set_divided() noexcept { is_divided_ = true; }
  // A tensor that optimizers get in place of a parameter.
  void add_piece(const at::Tensor& piece);

  // Whether it was a piece of a claim that is gone.
  [[nodiscard]] static bool is_left_over(const at::Tensor& tensor);
  // Whether it was a parameter of one: it may still lie in the memory of its unit.
  [[nodiscard]] static bool was_divided(const at::Tensor& tensor);

 private:
  bool is_divided_ = false;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> parameters_;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> pieces_;
};

}  // namespace accel::sharding
