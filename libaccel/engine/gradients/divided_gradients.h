// DividedGradients: what stands in for the gradients of parameters whose averages lie in the shards of all ranks.
//
// After a backward that synchronises no rank has the gradient of a parameter: each has its piece of it, in the groups of the
// prepared optimizer. Were `parameter.grad()` undefined, code of LibTorch would pass the parameter by without a word. So it is
// a tensor of the gradient's shape and type without memory: who reads or writes it (torch::nn::utils::clip_grad_norm_, an
// optimizer that was not prepared) gets a c10::Error with the parameter's name and the line to write; who takes it away, as
// Module::zero_grad() does, has cleared the gradient, and the piece's goes too.
//
//   away --put()--> in place --somebody takes it away--> cleared --settle(): on_cleared()--> away
//                   in place --withdraw(): a gradient comes--> withdrawn --put_back()--> in place
//
// Threads:  the thread that trains; withdraw() also LibTorch's of the backward.
// Cost:     a tensor without memory for each parameter.
// Source:   c10/core/StorageImpl.h of LibTorch 2.11: FakeTensors guard their memory in this way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::sharding {

// Whether `gradient` is one that stands in for a gradient.
[[nodiscard]] bool is_stand_in(const at::Tensor& gradient);

class DividedGradients {
 public:
  // Withdraws all before autograd adds a gradient to one of the parameters.
  DividedGradients(std::vector<NamedParameter> parameters,
                   std::function<void(std::size_t parameter)> on_cleared);
  ~DividedGradients();
  DividedGradients(const DividedGradients&) = delete;
  DividedGradients& operator=(const DividedGradients&) = delete;

  void put(std::size_t parameter);
  void settle();
  // Settles, and takes those away that are in place.
  void withdraw();
  // Those that were withdrawn and have got no gradient since.
  void put_back();
  // The gradient was cleared in full: nothing stands in for it.
  void forget(std::size_t parameter);

 private:
  enum class State : std::uint8_t { kAway, kInPlace, kWithdrawn };

  std::vector<NamedParameter> parameters_;
  std::function<void(std::size_t)> on_cleared_;
  std::vector<at::Tensor> stand_ins_;  // by parameter, made when first put
  std::vector<State> states_;
  std::size_t num_in_place_ = 0;
  std::vector<interception::GradientHook> hooks_;
};

}  // namespace accel::sharding
