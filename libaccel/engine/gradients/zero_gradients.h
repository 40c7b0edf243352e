// What a rank without batches brings to the gradients of all: zeros.
//
// Threads:  the thread that trains.
#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/tensors/parameter_list.h"

namespace accel {

enum class NoGradient {
  kIsZero,       // each parameter gets one of zeros
  kIsUndefined,  // each parameter is used, and gets none
};

// A 0-d tensor whose backward reaches every parameter. It reads no parameter, and holds one gradient at a time.
[[nodiscard]] at::Tensor output_without_forward(const std::vector<NamedParameter>& parameters,
                                                NoGradient gradient);

// Whether any parameter has a gradient that is not all zeros; one that is divided over the ranks counts as such.
[[nodiscard]] bool has_gradients(const std::vector<NamedParameter>& parameters);
void release_gradients(const std::vector<NamedParameter>& parameters);

}  // namespace accel
