#include "libaccel/engine/gradients/gradient_hooks.h"

namespace accel {

GradientHooks::GradientHooks(const std::vector<NamedParameter>& parameters,
                             const OnGradient& on_gradient) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    hooks_.push_back(interception::behind_adding(
        parameters[i].tensor,
        [on_gradient, i](const at::Tensor& arrived) { on_gradient(i, arrived); }));
  }
}

}  // namespace accel
