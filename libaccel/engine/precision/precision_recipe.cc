#include "libaccel/engine/precision/precision_recipe.h"

#include <string_view>
#include <utility>

#include <accel/error.h>

namespace accel {
namespace {

// A file decides where the program asks for nothing, and contradicts it nowhere.
PrecisionType agreed_precision(PrecisionType asked, const DeepSpeedPrecision& file) {
  const std::pair<PrecisionType, std::optional<bool>> rows[] = {
      {PrecisionType::kFp16, file.is_fp16}, {PrecisionType::kBf16, file.is_bf16}};
  PrecisionType precision = asked;
  for (const auto& [type, is_on] : rows) {
    const bool contradicts = is_on == true ? precision != type && precision != PrecisionType::kNo
                                           : is_on == false && precision == type;
    if (contradicts) {
      throw Error(ErrorCode::kInvalidArgument,
                  file.file + ": " + std::string(to_string(type)) + ".enabled is " +
                      (*is_on ? "true" : "false") + ", and mixed_precision is " +
                      std::string(to_string(precision)),
                  "set it to \"auto\" in the file, or give the mixed_precision of the file");
    }
    if (is_on == true) precision = type;
  }
  return precision;
}

MixedPrecisionPolicy policy_of(const std::string& text, int version) {
  const std::pair<std::string_view, c10::ScalarType> names[] = {
      {"bf16", c10::kBFloat16}, {"fp16", c10::kHalf}, {"fp32", c10::kFloat}};
  for (const auto& [name, dtype] : names) {
    if (name != text) continue;
    MixedPrecisionPolicy policy{.param_dtype = dtype, .reduce_dtype = dtype};
    (version == 1 ? policy.buffer_dtype : policy.output_dtype) = dtype;
    return policy;
  }
  throw Error(ErrorCode::kInvalidArgument,
              "mixed_precision_policy is '" + text + "', expected bf16, fp16 or fp32");
}

void check_types(const MixedPrecisionPolicy& policy) {
  const std::pair<const char*, std::optional<c10::ScalarType>> fields[] = {
      {"param_dtype", policy.param_dtype},
      {"reduce_dtype", policy.reduce_dtype},
      {"buffer_dtype", policy.buffer_dtype},
      {"output_dtype", policy.output_dtype}};
  for (const auto& [name, dtype] : fields) {
    if (!dtype || *dtype == c10::kBFloat16 || *dtype == c10::kHalf || *dtype == c10::kFloat)
      continue;
    throw Error(ErrorCode::kInvalidArgument,
                std::string(name) + " of the mixed_precision_policy is " + c10::toString(*dtype) +
                    ", expected BFloat16, Half or Float");
  }
}

void set_shards(PrecisionRecipe& recipe, const PrecisionSettings& settings) {
  if (!settings.policy) return;
  const auto* const text = std::get_if<std::string>(&*settings.policy);
  const MixedPrecisionPolicy policy = text != nullptr
                                          ? policy_of(*text, settings.fsdp_version)
                                          : std::get<MixedPrecisionPolicy>(*settings.policy);
  check_types(policy);
  recipe.parameter = policy.param_dtype;
  recipe.reduce = policy.reduce_dtype ? policy.reduce_dtype : policy.param_dtype;
  recipe.buffer = policy.buffer_dtype;
  if (policy.cast_forward_inputs) recipe.input = policy.param_dtype;
  recipe.output = policy.output_dtype;
}

}  // namespace

c10::ScalarType PrecisionRecipe::optimizer_type(c10::ScalarType of_model) const noexcept {
  const bool is_of_16_bits = of_model == c10::kHalf || of_model == c10::kBFloat16;
  return parameter && is_of_16_bits ? c10::kFloat : of_model;  // steps are too small for 16 bits
}

PrecisionRecipe PrecisionRecipe::of_whole_model() const {
  PrecisionRecipe recipe = *this;
  for (auto* const type :
       {&recipe.parameter, &recipe.reduce, &recipe.buffer, &recipe.input, &recipe.output})
    type->reset();
  return recipe;
}

PrecisionType asked_precision(std::optional<PrecisionType> given, const EnvLookup& env) {
  const auto text = given ? std::nullopt : env("ACCELERATE_MIXED_PRECISION");
  const PrecisionType asked =
      text && !text->empty() ? parse<PrecisionType>(*text) : given.value_or(PrecisionType::kNo);
  if (asked != PrecisionType::kFp8) return asked;
  throw Error(ErrorCode::kUnsupported, "mixed precision fp8 is not part of this build", "use bf16");
}

PrecisionRecipe make_recipe(const PrecisionSettings& settings) {
  PrecisionRecipe recipe;
  recipe.mixed_precision = agreed_precision(settings.mixed_precision, settings.deepspeed);
  recipe.autocast = settings.autocast;
  const bool is_fp16 = recipe.mixed_precision == PrecisionType::kFp16;
  if (recipe.mixed_precision != PrecisionType::kNo)
    recipe.compute = is_fp16 ? c10::kHalf : c10::kBFloat16;
  if (is_fp16 && settings.grad_scaler.enabled)
    recipe.scaler = settings.deepspeed.loss_scale.value_or(settings.grad_scaler);
  set_shards(recipe, settings);
  recipe.widens_parameters = settings.divides_models && !recipe.parameter && recipe.compute;
  return recipe;
}

AutocastOptions autocast_options(const PrecisionRecipe& recipe,
                                 const AutocastKwargs& asked,
                                 c10::DeviceType device) {
  return {.device_type = device,
          .dtype = recipe.compute.value_or(c10::kBFloat16),
          .enabled = asked.enabled && recipe.compute,
          .cache_enabled = asked.cache_enabled};
}

}  // namespace accel
