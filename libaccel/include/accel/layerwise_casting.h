// LayerwiseCasting: stores weights in a small dtype and computes with them in a larger one.
//
//   accel::attach_layerwise_casting_hooks(
//       *net, at::kFloat8_e4m3fn, at::kBFloat16, {.skip_modules_pattern = {"norm"}});
//   net->forward(input.to(at::kBFloat16));  // any torch::nn code, unmodified
//
// It applies to linear and convolution layers, as in Accelerate: Linear, Conv1d to Conv3d,
// ConvTranspose1d to 3d. Their parameters report compute_dtype from then on. Memory holds them in
// storage_dtype, and the two largest weights also in compute_dtype. An operator that reads a weight
// gets the stored values, converted. The module is not wrapped.
//
// A write to a weight (load_state_dict, an optimizer) rounds it to storage_dtype. Other parameters
// and all buffers keep their dtype.
//
// Threads:  the thread that owns the model; operators on any thread afterwards.
// Cost:     a forward casts each weight once. Code that uses data_ptr() must hold the weights
//           (accel/with_params.h).
// Source:   accelerate 1.15.0, big_modeling.py and hooks.py: LayerwiseCastingHook
//           (tests/peer/module_tensors.py).
#pragma once

#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

#include <accel/export.h>

namespace torch::nn {
class Module;
}

namespace accel {

struct LayerwiseCastingOptions {
  // ECMAScript regular expressions, searched in the names of modules: "norm" matches
  // "encoder.norm1". A match skips the module and all modules below it.
  std::vector<std::string> skip_modules_pattern = {};
  // Names of module classes, as in accel/device_map.h.
  std::vector<std::string> skip_modules_classes = {};
};

// Errors  throws kInvalidArgument: not a floating-point dtype, not a regular expression;
// kUnsupported: a weight that is not in ordinary host memory, or already paged (prepared, on disk,
// cast before). The model is unchanged then.
ACCEL_EXPORT void attach_layerwise_casting_hooks(torch::nn::Module& module,
                                                 c10::ScalarType storage_dtype,
                                                 c10::ScalarType compute_dtype,
                                                 const LayerwiseCastingOptions& options = {});

}  // namespace accel
