// GradientClipping: bounds for gradients, equal to torch.nn.utils of Python to the bit. A parameter that is listed twice (tied weights) counts once.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

class ProcessGroup;

// Scales the defined gradients so that the norm of all of them together is at most max_norm.
// Returns the norm before as a 0-d tensor (0 without gradients). Never waits for a device.
at::Tensor clip_gradient_norm_(const std::vector<at::Tensor>& parameters,
                               double max_norm,
                               double norm_type);

// As above, when each rank holds other parts of the gradients: `own` are this rank's parts, `shared` are whole and equal
// on all ranks. combine() gives the norm over all ranks of the norm of one rank's parts.
at::Tensor clip_gradient_norm_(const std::vector<at::Tensor>& own,
                               const std::vector<at::Tensor>& shared,
                               double max_norm,
                               double norm_type,
                               const std::function<at::Tensor(const at::Tensor&)>& combine);

// As the first, by a norm that is known.
void clip_gradients_to_(const std::vector<at::Tensor>& parameters,
                        const at::Tensor& norm,
                        double max_norm);

// What gradients of that norm, a 0-d tensor, are multiplied by so that it is at most max_norm.
[[nodiscard]] at::Tensor clipping_factor(const at::Tensor& norm, double max_norm);

// The norm over all ranks of the norms of their parts, of which `norm` is this rank's: over each of the groups that a model is
// divided over. Throws kPeerLost, kProcessGroup. Requires: every rank calls it.
at::Tensor combined_norm(std::span<const std::shared_ptr<ProcessGroup>> groups,
                         const at::Tensor& norm,
                         double norm_type);

// Cuts the defined gradients to [-clip_value, clip_value].
void clip_gradient_value_(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace accel
