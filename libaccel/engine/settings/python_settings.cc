// What workers in Python are told: the fields that a program sets, else the variables that it was started with, else the defaults
// of Accelerate, all of them as variables.

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <accel/dynamo_plugin.h>
#include <accel/error.h>
#include <accel/fp8_recipe.h>

#include "libaccel/engine/settings/variable_values.h"
#include "runtime/text/joined.h"
#include "runtime/text/letter_case.h"

namespace accel {
namespace {

constexpr std::string_view kFp8Prefix = "ACCELERATE_FP8_";
constexpr std::string_view kDynamoPrefix = "ACCELERATE_DYNAMO_";

// Fields as variables of one prefix.
class PythonVariables {
 public:
  PythonVariables(std::string_view prefix, const EnvLookup& env) : prefix_(prefix), env_(env) {}

  void add(std::string_view name, std::optional<bool> field, bool fallback) {
    set(name, field.value_or(sharding::flag_of(env_, full(name)).value_or(fallback)) ? "1" : "0");
  }

  void add(std::string_view name, std::optional<int> field, int fallback, int least) {
    const std::string expected = "a whole number of at least " + std::to_string(least);
    const int number = field.value_or(
        sharding::number_of<int>(env_, full(name), expected.c_str()).value_or(fallback));
    if (number < least) refuse(name, field.has_value(), std::to_string(number), expected);
    set(name, std::to_string(number));
  }

  // One of the choices, in any case; the first is the default.
  void add(std::string_view name,
           const std::optional<std::string>& field,
           const std::vector<std::string_view>& choices) {
    const std::string text =
        field.value_or(sharding::text_of(env_, full(name)).value_or(std::string(choices.front())));
    const auto found = std::ranges::find_if(
        choices, [&](std::string_view choice) { return is_equal_but_for_case(choice, text); });
    if (found == choices.end()) {
      refuse(name, field.has_value(), text, "one of " + joined(choices, ", "));
    }
    set(name, std::string(*found));
  }

  void set(std::string_view name, std::string value) { values_[full(name)] = std::move(value); }

  [[nodiscard]] std::map<std::string, std::string>& values() noexcept { return values_; }

 private:
  [[nodiscard]] std::string full(std::string_view name) const {
    return std::string(prefix_) + std::string(name);
  }

  [[noreturn]] void refuse(std::string_view name,
                           bool is_field,
                           const std::string& value,
                           const std::string& expected) const {
    if (!is_field) throw sharding::invalid_variable(full(name), value, expected);
    throw Error(ErrorCode::kInvalidArgument,
                "the field for " + full(name) + " is '" + value + "', expected " + expected);
  }

  std::string_view prefix_;
  const EnvLookup& env_;
  std::map<std::string, std::string> values_;
};

void add_fields(PythonVariables& variables, const AORecipeKwargs& recipe) {
  variables.add("PAD_INNER_DIM", recipe.pad_inner_dim, true);
  variables.add("ENABLE_FSDP_FLOAT8_ALL_GATHER", recipe.enable_fsdp_float8_all_gather, true);
}

void add_fields(PythonVariables& variables, const TERecipeKwargs& recipe) {
  variables.add("USE_AUTOCAST_DURING_EVAL", recipe.use_autocast_during_eval, false);
  variables.add("MARGIN", recipe.margin, 0, 0);
  variables.add("INTERVAL", recipe.interval, 1, 1);
  variables.add("FORMAT", recipe.fp8_format, {"HYBRID", "E4M3", "E5M2"});
  variables.add("AMAX_HISTORY_LEN", recipe.amax_history_len, 1024, 1);
  variables.add("AMAX_COMPUTE_ALGO", recipe.amax_compute_algo, {"most_recent", "max"});
  constexpr std::string_view kOverrides[] = {"OVERRIDE_FPROP", "OVERRIDE_DGRAD", "OVERRIDE_WGRAD"};
  for (std::size_t i = 0; i < std::size(kOverrides); ++i) {
    const auto& given = recipe.override_linear_precision;
    variables.add(kOverrides[i], given ? std::optional((*given)[i]) : std::nullopt, false);
  }
  variables.add("USE_MXFP8_BLOCK_SCALING", recipe.use_mxfp8_block_scaling, false);
}

void add_fields(PythonVariables& variables, const MSAMPRecipeKwargs& recipe) {
  variables.add("OPT_LEVEL", recipe.opt_level, {"O2", "O1"});
}

void add_fields(PythonVariables& variables, const FP8RecipeKwargs& recipe) {
  add_fields(variables, recipe.te);
  add_fields(variables, recipe.msamp);
}

// The name of the field, as Accelerate's class has it.
FP8BackendType named_backend(const FP8RecipeKwargs& recipe, const EnvLookup& env) {
  PythonVariables variables(kFp8Prefix, env);
  variables.add("BACKEND", recipe.backend, {"TE", "MSAMP"});
  return parse<FP8BackendType>(variables.values().begin()->second);
}

}  // namespace

FP8BackendType fp8_backend(const Fp8Recipe& recipe, const EnvLookup& env) {
  constexpr FP8BackendType kByPlace[] = {
      FP8BackendType::kAo, FP8BackendType::kTe, FP8BackendType::kMsamp};
  if (const auto* const named = std::get_if<FP8RecipeKwargs>(&recipe))
    return named_backend(*named, env);
  return kByPlace[recipe.index()];
}

FP8BackendType fp8_backend(const EnvLookup& env) {
  PythonVariables variables(kFp8Prefix, env);
  variables.add("BACKEND", std::nullopt, {"NO", "TE", "MSAMP", "AO"});
  return parse<FP8BackendType>(variables.values().begin()->second);
}

std::map<std::string, std::string> fp8_environment(const Fp8Recipe& recipe, const EnvLookup& env) {
  PythonVariables variables(kFp8Prefix, env);
  variables.set("BACKEND", std::string(to_string(fp8_backend(recipe, env))));
  std::visit([&](const auto& fields) { add_fields(variables, fields); }, recipe);
  variables.values()["ACCELERATE_MIXED_PRECISION"] = to_string(PrecisionType::kFp8);
  return std::move(variables.values());
}

std::map<std::string, std::string> dynamo_environment(const TorchDynamoPlugin& plugin,
                                                      const EnvLookup& env) {
  PythonVariables variables(kDynamoPrefix, env);
  std::vector<std::string_view> backends;
  for (const auto& row : enum_texts<DynamoBackend>()) backends.push_back(row.text);
  variables.add(
      "BACKEND",
      plugin.backend ? std::optional(std::string(to_string(*plugin.backend))) : std::nullopt,
      backends);
  variables.add("MODE", plugin.mode, {"default", "reduce-overhead", "max-autotune"});
  const auto dynamic =
      plugin.dynamic ? plugin.dynamic : sharding::flag_of(env, "ACCELERATE_DYNAMO_USE_DYNAMIC");
  if (dynamic) variables.add("USE_DYNAMIC", dynamic, false);
  variables.add("USE_FULLGRAPH", plugin.fullgraph, false);
  variables.add("USE_REGIONAL_COMPILATION", plugin.use_regional_compilation, false);
  return std::move(variables.values());
}

}  // namespace accel
