// GradientHooks: calls back for each gradient of some parameters, as soon as it is added up.
//
// They sit behind those of the program (behind_adding() of interception/backward_hooks.h).
//
// Threads:  made and destroyed by the thread that trains, outside of a backward; called by LibTorch's thread of the backward,
//           one at a time. What they throw ends the backward.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel {

class GradientHooks {
 public:
  // parameter: by its place in the list. arrived: what autograd has made the gradient of, or added to it; may be undefined.
  using OnGradient = std::function<void(std::size_t parameter, const at::Tensor& arrived)>;

  GradientHooks(const std::vector<NamedParameter>& parameters, const OnGradient& on_gradient);

 private:
  std::vector<interception::GradientHook> hooks_;
};

}  // namespace accel
