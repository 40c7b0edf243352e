// ExactNorm: the 2-norm of gradients that has the same bits however they are divided, over tensors or over ranks.
//
// Squares are rounded to whole numbers of one unit, which the largest gradient decides on, and whole numbers add up to the same sum
// in any order. The unit is 2^-60 of the largest square, so the sum of n of them is right to n * 2^-61 of itself: more than the
// ordinary sum in float32.
//
// Threads:  the thread that trains; every rank of the groups makes the same calls.
// Cost:     two passes over the gradients, and two reductions of 16 and 24 bytes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

class ProcessGroup;

// 0-d, of float32, or of float64 where a gradient is: the norm of the defined gradients of `own`, over all ranks of the groups
// together, and of `shared`, which all ranks have alike. NaN or infinite where one of them is. Throws kPeerLost, kProcessGroup.
[[nodiscard]] at::Tensor exact_norm(const std::vector<at::Tensor>& own,
                                    const std::vector<at::Tensor>& shared,
                                    std::span<const std::shared_ptr<ProcessGroup>> groups);

}  // namespace accel
