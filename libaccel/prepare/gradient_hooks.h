// GradientHooks: calls back for each gradient of some parameters, as soon as it is added up.
//
// They sit at the nodes that add up gradients, in the order in which they were put there, and a hook that the user puts at a
// parameter does not take their place.
//
// Threads:  made and destroyed by the thread that trains, outside of a backward; called by LibTorch's thread of the backward,
//           one at a time. What they throw ends the backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/error.h>

#include "libaccel/prepare/parameter_list.h"

namespace torch::autograd {
struct Node;
}

namespace accel {

// For a parameter that gets another gradient when its first one may be averaged already.
[[nodiscard]] Error second_gradient(const NamedParameter& parameter);

class GradientHooks {
 public:
  // parameter: by its place in the list. arrived: what autograd has made the gradient of, or added to it; may be undefined.
  using OnGradient = std::function<void(std::size_t parameter, const at::Tensor& arrived)>;

  GradientHooks(const std::vector<NamedParameter>& parameters, const OnGradient& on_gradient);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

 private:
  struct Hook {
    std::shared_ptr<torch::autograd::Node> accumulator;  // the parameter itself holds it weakly
    std::uintptr_t key;
  };
  std::vector<Hook> hooks_;
};

}  // namespace accel
