// Fp8Recipe: how a Python library trains in 8 bits, with the names of HF Accelerate, for workers in Python.
//
//   accel::notebook_launcher(start_python, {.num_processes = 2,
//                                           .mixed_precision = "fp8",
//                                           .env = accel::fp8_environment(accel::TERecipeKwargs{.margin = 1})});
//
// Accelerate reads the variables if its program passes no recipe. libaccel does not compute in 8 bits: an Accelerator refuses
// mixed_precision "fp8" and AcceleratorOptions::fp8_recipe, with the reason.
//
// Threads:  values; pure functions.
// Source:   tests/peer/parallelism.py reads the variables with Accelerate's classes.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include <accel/env_contract.h>
#include <accel/export.h>
#include <accel/types.h>

namespace accel {

// Which library: Transformer Engine, MS-AMP or torchao.
enum class FP8BackendType { kNo, kTe, kMsamp, kAo };

// A field that is not set comes from its variable, ACCELERATE_FP8_ and the field's name, else it is the default.

struct AORecipeKwargs {
  std::optional<bool> pad_inner_dim;                  // sizes to multiples of 16; default true
  std::optional<bool> enable_fsdp_float8_all_gather;  // with FSDP version 2; default true
};

struct TERecipeKwargs {
  std::optional<bool> use_autocast_during_eval;  // default false
  std::optional<int> margin;                     // of the scaling factor; default 0
  std::optional<int> interval;                   // steps between scaling factors; default 1
  std::optional<std::string> fp8_format;  // HYBRID, E4M3 or E5M2, in any case; default HYBRID
  std::optional<int>
      amax_history_len;  // steps that the largest value is looked for in; default 1024
  std::optional<std::string>
      amax_compute_algo;  // max or most_recent, in any case; default most_recent
  // Higher precision for the forward pass, the gradient of the input and the gradient of the weight. Variables: OVERRIDE_FPROP,
  // OVERRIDE_DGRAD, OVERRIDE_WGRAD. Default: none of them.
  std::optional<std::array<bool, 3>> override_linear_precision;
  std::optional<bool> use_mxfp8_block_scaling;  // default false
};

struct MSAMPRecipeKwargs {
  std::optional<std::string> opt_level;  // O1 or O2; default O2
};

// Deprecated in Accelerate: one of the two recipes above, by name.
struct FP8RecipeKwargs {
  std::optional<std::string> backend;  // MSAMP or TE, in any case; default TE
  TERecipeKwargs te;
  MSAMPRecipeKwargs msamp;
};

using Fp8Recipe = std::variant<AORecipeKwargs, TERecipeKwargs, MSAMPRecipeKwargs, FP8RecipeKwargs>;

// The library that the recipe is for. Throws kInvalidArgument, or kEnvInvalid for a variable, for another `backend`.
[[nodiscard]] ACCEL_EXPORT FP8BackendType fp8_backend(const Fp8Recipe& recipe,
                                                      const EnvLookup& env = process_env());
// Without a recipe: ACCELERATE_FP8_BACKEND, else kNo. Throws kEnvInvalid.
[[nodiscard]] ACCEL_EXPORT FP8BackendType fp8_backend(const EnvLookup& env);

// The variables with which a Python worker trains by the recipe, ACCELERATE_MIXED_PRECISION among them: all fields of its library.
// They override a worker's own environment. Throws kInvalidArgument, naming a field whose value is not one of its choices, and
// kEnvInvalid, naming such a variable.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, std::string> fp8_environment(
    const Fp8Recipe& recipe, const EnvLookup& env = process_env());

}  // namespace accel
