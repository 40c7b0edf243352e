// BackwardStep: a backward in which an optimizer steps each parameter as soon as its gradient is there.
//
// Threads:  the thread that trains; the steps are made on LibTorch's thread of the backward. What throws meanwhile leaves some
//           parameters stepped.
#pragma once

#include <functional>

#include <accel/lomo.h>

namespace accel::detail {

// backward: of the loss; told whether another one of the same forward follows. Called once, or with clip_grad_norm twice: first
// for the norm. Requires: nobody else waits for the gradients of the optimizer's parameters.
void step_as_gradients_come(BackwardOptimizer& optimizer,
                            double learning_rate,
                            const std::function<void(bool is_followed)>& backward);

}  // namespace accel::detail
