// PrecisionRecipe: which type each value of a training has, where it is cast, and whether the loss is scaled.
//
// make_recipe() takes all that programs, files and variables say of it, and refuses what contradicts itself; whoever casts,
// gathers, reduces or scales goes by the recipe alone. Another way to compute in fewer bits (fp8, layers one by one) is another
// recipe.
//
//   value                                      type            where it is cast
//   arguments of operators in a forward        compute         at each operator that autocast knows
//   parameters, as forward and backward see    parameter       at the gather: owners round their masters into the home
//   masters: what optimizers step              optimizer_type  when a model is divided
//   gradients while ranks sum them             reduce          as they arrive
//   buffers                                    buffer          when a model is divided
//   arguments of the prepared model            input           as it is called
//   what its forward returns                   output          as it returns; before, what autocast left in 16 bits becomes fp32
//
// What is unset stays as the model has it. Floating point values alone are cast.
//
// Threads:  values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <accel/accelerator_options.h>
#include <accel/env_contract.h>
#include <accel/fsdp.h>
#include <accel/precision.h>
#include <accel/types.h>

namespace accel {

// What DeepSpeed's configuration says; unset where that is "auto" or nothing.
struct DeepSpeedPrecision {
  std::string file;                            // for messages
  std::optional<bool> is_fp16;                 // fp16.enabled
  std::optional<bool> is_bf16;                 // bf16.enabled
  std::optional<GradScalerKwargs> loss_scale;  // of fp16, in place of the program's
};

struct PrecisionSettings {
  PrecisionType mixed_precision = PrecisionType::kNo;  // asked_precision()
  DeepSpeedPrecision deepspeed;
  AutocastKwargs autocast;
  GradScalerKwargs grad_scaler;
  // Of the plugin of FSDP; what a text means depends on its version.
  std::optional<std::variant<MixedPrecisionPolicy, std::string>> policy;
  int fsdp_version = 1;
  bool divides_models =
      false;  // FSDP or ZeRO with another strategy than NO_SHARD, also with one process
};

struct PrecisionRecipe {
  PrecisionType mixed_precision = PrecisionType::kNo;  // of AcceleratorState

  std::optional<c10::ScalarType> compute;
  AutocastKwargs autocast;  // not enabled: forwards go without it, whatever `compute` is

  // Of models that are divided.
  std::optional<c10::ScalarType> parameter;
  std::optional<c10::ScalarType> reduce;
  std::optional<c10::ScalarType> buffer;
  std::optional<c10::ScalarType> input;
  std::optional<c10::ScalarType> output;
  // Trained parameters that come in 16 bits become fp32, whether a model is divided or will be.
  bool widens_parameters = false;

  std::optional<GradScalerKwargs> scaler;  // of the loss

  [[nodiscard]] bool casts_by_autocast() const noexcept { return compute && autocast.enabled; }
  // Whether shards have types that whole parameters have not.
  [[nodiscard]] bool is_of_shards() const noexcept {
    return parameter || reduce || buffer || output;
  }
  // The type of a parameter's master, and of its gradient and states; else that of the parameter.
  [[nodiscard]] c10::ScalarType optimizer_type(c10::ScalarType of_model) const noexcept;
  // That of a model that is not divided: what is of shards is left out.
  [[nodiscard]] PrecisionRecipe of_whole_model() const;
};

// What the program asks for, else ACCELERATE_MIXED_PRECISION, else kNo. Throws kInvalidArgument for a text that is no
// precision, kUnsupported for fp8.
[[nodiscard]] PrecisionType asked_precision(std::optional<PrecisionType> given,
                                            const EnvLookup& env);

// Throws kInvalidArgument naming the keys: a file of DeepSpeed that says another precision than mixed_precision, or two; a policy
// with a type that is none of bf16, fp16 and fp32.
[[nodiscard]] PrecisionRecipe make_recipe(const PrecisionSettings& settings);

// Of a scope under the recipe.
[[nodiscard]] AutocastOptions autocast_options(const PrecisionRecipe& recipe,
                                               const AutocastKwargs& asked,
                                               c10::DeviceType device);

}  // namespace accel
