// LayerwiseCasting: weights kept in a small dtype, and computed with in a larger one.
//
//   accel::attach_layerwise_casting_hooks(
//       *net, at::kFloat8_e4m3fn, at::kBFloat16, {.skip_modules_pattern = {"norm"}});
//   net->forward(input.to(at::kBFloat16));  // any torch::nn code, unmodified
//
// It holds for linear and convolution layers, Accelerate's list: Linear, Conv1d to Conv3d,
// ConvTranspose1d to 3d. Their parameters show compute_dtype from now on, and take memory in
// storage_dtype, besides that of the two largest weights in compute_dtype. Each operator that reads
// one gets the stored values, cast up. Nothing of the module is wrapped.
//
// A weight that is written to (load_state_dict, an optimizer) is rounded to storage_dtype. Other
// parameters and all buffers keep their dtype.
//
// Threads:  the thread that owns the model; operators on any thread afterwards.
// Cost:     a forward casts each weight once. Code that takes data_ptr() holds the weights
//           meanwhile (accel/with_params.h).
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
  // Regular expressions of ECMAScript, looked for in the names of modules: "norm" is found in
  // "encoder.norm1". A module that is skipped is left alone with all below it.
  std::vector<std::string> skip_modules_pattern = {};
  // Classes, called as in accel/device_map.h.
  std::vector<std::string> skip_modules_classes = {};
};

// Errors  throws kInvalidArgument: a dtype that is no floating point type, a pattern that is no
// regular expression; kUnsupported: a weight that is not in ordinary memory of the host, or paged
// already (prepared, on disk, cast before). The model is unchanged then.
ACCEL_EXPORT void attach_layerwise_casting_hooks(torch::nn::Module& module,
                                                 c10::ScalarType storage_dtype,
                                                 c10::ScalarType compute_dtype,
                                                 const LayerwiseCastingOptions& options = {});

}  // namespace accel
