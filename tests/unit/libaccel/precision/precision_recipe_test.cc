// Which types a training has, from everything that may say it; and what a CPU without bf16 is told.

#include "libaccel/engine/precision/precision_recipe.h"

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/engine/precision/slow_bf16.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::precision_recipe_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr auto kNo = PrecisionType::kNo;
constexpr auto kFp16 = PrecisionType::kFp16;
constexpr auto kBf16 = PrecisionType::kBf16;
constexpr MixedPrecisionPolicy kUnset{};

// What is set, in the order of the header: "bf16: compute BFloat16".
std::string text_of(const PrecisionRecipe& recipe) {
  std::string text = std::string(to_string(recipe.mixed_precision)) + ":";
  const std::pair<const char*, std::optional<c10::ScalarType>> types[] = {
      {"compute", recipe.compute},
      {"parameter", recipe.parameter},
      {"reduce", recipe.reduce},
      {"buffer", recipe.buffer},
      {"input", recipe.input},
      {"output", recipe.output}};
  for (const auto& [name, type] : types) {
    if (type) text += std::string(" ") + name + " " + c10::toString(*type);
  }
  if (recipe.compute && !recipe.casts_by_autocast()) text += " without autocast";
  if (recipe.widens_parameters) text += " widens";
  if (recipe.scaler) text += " scales from " + std::to_string(int(recipe.scaler->init_scale));
  return text;
}

struct Row {
  PrecisionSettings settings;
  const char* recipe;
};

TEST(PrecisionRecipe, FollowsFromTheSettings) {
  const std::optional<std::variant<MixedPrecisionPolicy, std::string>> to_bf16 = "bf16";
  const Row rows[] = {
      {{}, "no:"},
      // mixed_precision, and the options of autocast and of the scaler
      {{.mixed_precision = kBf16}, "bf16: compute BFloat16"},
      {{.mixed_precision = kBf16, .autocast = {.enabled = false}},
       "bf16: compute BFloat16 without autocast"},
      {{.mixed_precision = kFp16}, "fp16: compute Half scales from 65536"},
      {{.mixed_precision = kFp16, .grad_scaler = {.init_scale = 8}},
       "fp16: compute Half scales from 8"},
      {{.mixed_precision = kFp16, .grad_scaler = {.enabled = false}}, "fp16: compute Half"},
      {{.grad_scaler = {.init_scale = 8}}, "no:"},
      // a file of DeepSpeed
      {{.deepspeed = {.is_bf16 = true}}, "bf16: compute BFloat16"},
      {{.mixed_precision = kBf16, .deepspeed = {.is_fp16 = false, .is_bf16 = true}},
       "bf16: compute BFloat16"},
      {{.mixed_precision = kFp16, .deepspeed = {.is_bf16 = false}},
       "fp16: compute Half scales from 65536"},
      {{.deepspeed = {.is_fp16 = true}, .divides_models = true},
       "fp16: compute Half widens scales from 65536"},
      // FSDP without a policy
      {{.divides_models = true}, "no:"},
      {{.mixed_precision = kBf16, .divides_models = true}, "bf16: compute BFloat16 widens"},
      // a text
      {{.policy = to_bf16, .divides_models = true},
       "no: parameter BFloat16 reduce BFloat16 buffer BFloat16 input BFloat16"},
      {{.policy = "fp16", .fsdp_version = 2, .divides_models = true},
       "no: parameter Half reduce Half input Half output Half"},
      {{.mixed_precision = kBf16, .policy = to_bf16, .divides_models = true},
       "bf16: compute BFloat16 parameter BFloat16 reduce BFloat16 buffer BFloat16 input BFloat16"},
      // single types
      {{.policy = kUnset}, "no:"},
      {{.policy = MixedPrecisionPolicy{.param_dtype = c10::kBFloat16}},
       "no: parameter BFloat16 reduce BFloat16 input BFloat16"},
      {{.policy = MixedPrecisionPolicy{.param_dtype = c10::kBFloat16,
                                       .reduce_dtype = c10::kFloat,
                                       .cast_forward_inputs = false}},
       "no: parameter BFloat16 reduce Float"},
      {{.mixed_precision = kBf16,
        .policy = MixedPrecisionPolicy{.reduce_dtype = c10::kBFloat16, .output_dtype = c10::kHalf},
        .divides_models = true},
       "bf16: compute BFloat16 reduce BFloat16 output Half widens"},
      {{.policy = MixedPrecisionPolicy{.buffer_dtype = c10::kHalf}}, "no: buffer Half"},
  };
  for (const auto& [settings, expected] : rows) EXPECT_EQ(text_of(make_recipe(settings)), expected);
}

TEST(PrecisionRecipe, RefusesWhatContradictsItselfByTheNamesOfTheKeys) {
  const Row rows[] = {
      {{.mixed_precision = kBf16, .deepspeed = {.file = "ds.json", .is_fp16 = true}},
       "ds.json: fp16.enabled is true, and mixed_precision is bf16"},
      {{.mixed_precision = kBf16, .deepspeed = {.file = "ds.json", .is_bf16 = false}},
       "ds.json: bf16.enabled is false, and mixed_precision is bf16"},
      {{.deepspeed = {.file = "ds.json", .is_fp16 = true, .is_bf16 = true}},
       "ds.json: bf16.enabled is true, and mixed_precision is fp16"},
      {{.policy = "int8"}, "mixed_precision_policy is 'int8', expected bf16, fp16 or fp32"},
      {{.policy = MixedPrecisionPolicy{.param_dtype = c10::kInt}},
       "param_dtype of the mixed_precision_policy is Int, expected BFloat16, Half or Float"},
      {{.policy = MixedPrecisionPolicy{.output_dtype = c10::kDouble}},
       "output_dtype of the mixed_precision_policy is Double, expected BFloat16, Half or Float"},
  };
  for (const auto& [settings, expected] : rows) {
    const Error error = test::error_of([&] { std::ignore = make_recipe(settings); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.message(), expected);
    EXPECT_EQ(error.remedy().find("\"auto\"") != std::string::npos, !settings.policy);
  }
}

TEST(PrecisionRecipe, AContradictionIsRefusedBeforeTheRanksMeet) {
  test::run_ranks(1, [] {
    AcceleratorOptions options{.mixed_precision = "fp16", .deepspeed_plugin = DeepSpeedPlugin{}};
    options.deepspeed_plugin->hf_ds_config =
        R"({"zero_optimization": {"stage": 2}, "bf16": {"enabled": true}})";

    EXPECT_THAT(test::error_of([&] { const Accelerator accelerator(options); }).message(),
                HasSubstr("bf16.enabled is true, and mixed_precision is fp16"));
    EXPECT_FALSE(PartialState::initialized());
  });
}

TEST(PrecisionRecipe, OfAModelThatIsNotDividedSaysNothingOfShards) {
  const PrecisionRecipe recipe =
      make_recipe({.mixed_precision = kBf16, .policy = "bf16", .divides_models = true});

  EXPECT_TRUE(recipe.is_of_shards());
  EXPECT_EQ(text_of(recipe.of_whole_model()), "bf16: compute BFloat16");
}

TEST(PrecisionRecipe, GivesMastersOf32BitsToParametersThatAreRounded) {
  const PrecisionRecipe rounds = make_recipe({.policy = "bf16"});
  const PrecisionRecipe none = make_recipe({.mixed_precision = kBf16});

  EXPECT_EQ(rounds.optimizer_type(c10::kHalf), c10::kFloat);
  EXPECT_EQ(rounds.optimizer_type(c10::kFloat), c10::kFloat);
  EXPECT_EQ(rounds.optimizer_type(c10::kDouble), c10::kDouble);
  EXPECT_EQ(none.optimizer_type(c10::kBFloat16), c10::kBFloat16);
}

TEST(AskedPrecision, IsThatOfTheProgramElseOfTheVariableElseNone) {
  const auto variable = [](const char* value) {
    return [value](std::string_view name) -> std::optional<std::string> {
      EXPECT_EQ(name, "ACCELERATE_MIXED_PRECISION");
      return value;
    };
  };
  EXPECT_EQ(asked_precision(kFp16, variable("bf16")), kFp16);
  EXPECT_EQ(asked_precision(std::nullopt, variable("bf16")), kBf16);
  EXPECT_EQ(asked_precision(std::nullopt, variable("")), kNo);
  EXPECT_EQ(asked_precision(std::nullopt, [](auto) { return std::nullopt; }), kNo);
  const auto code_of = [&](const char* text) {
    return test::error_of([&] { std::ignore = asked_precision(std::nullopt, variable(text)); })
        .code();
  };
  EXPECT_EQ(code_of("fp8"), ErrorCode::kUnsupported);
  EXPECT_EQ(code_of("int3"), ErrorCode::kInvalidArgument);
}

constexpr CpuFeatures kAvx2{.is_x86 = true};

TEST(SlowBf16, IsNamedWithWhatToDoOnACpuWithoutIt) {
  const auto notice_of = [](const PrecisionSettings& settings) {
    return slow_bf16_notice(make_recipe(settings), c10::DeviceType::CPU, kAvx2).value_or("");
  };
  EXPECT_THAT(notice_of({.mixed_precision = kBf16}),
              AllOf(HasSubstr("mixed_precision is bf16"),
                    HasSubstr("neither avx512_bf16 nor amx_bf16"),
                    HasSubstr("Train with mixed_precision = no"),
                    HasSubstr("ACCELERATE_LOG_LEVEL=error"),
                    Not(HasSubstr("param_dtype"))));
  EXPECT_THAT(notice_of({.policy = "bf16"}), HasSubstr("param_dtype is BFloat16"));
}

TEST(SlowBf16, IsNotMentionedWhereNothingIsSlow) {
  const PrecisionRecipe bf16 = make_recipe({.mixed_precision = kBf16});
  const auto is_said = [](const PrecisionRecipe& recipe, c10::DeviceType device, CpuFeatures cpu) {
    return slow_bf16_notice(recipe, device, cpu).has_value();
  };
  const c10::DeviceType cpu = c10::DeviceType::CPU;
  EXPECT_FALSE(is_said(bf16, cpu, {.is_x86 = true, .has_avx512_bf16 = true}));
  EXPECT_FALSE(is_said(bf16, cpu, {.is_x86 = true, .has_amx_bf16 = true}));
  EXPECT_FALSE(is_said(bf16, cpu, {}));
  EXPECT_FALSE(is_said(bf16, c10::DeviceType::CUDA, kAvx2));
  EXPECT_FALSE(is_said(make_recipe({.mixed_precision = kFp16}), cpu, kAvx2));
  EXPECT_FALSE(is_said(make_recipe({}), cpu, kAvx2));
  EXPECT_FALSE(
      is_said(make_recipe({.mixed_precision = kBf16, .autocast = {.enabled = false}}), cpu, kAvx2));
}

TEST(SlowBf16, IsSaidOnceForAllAcceleratorsAndRanks) {
  const auto exits = test::run_ranks(2, [] {
    const Accelerator first({.mixed_precision = kBf16});
    const Accelerator second({.mixed_precision = kBf16});
  });
  if (test::rank_of_this_process() >= 0) return;
  int num_lines = 0;
  for (const auto& exit : exits) {
    for (std::size_t at = 0;
         (at = exit.output.find("neither avx512_bf16", at)) != std::string::npos;
         ++at)
      ++num_lines;
  }
  const bool is_slow =
      slow_bf16_notice(
          make_recipe({.mixed_precision = kBf16}), c10::DeviceType::CPU, read_cpu_features())
          .has_value();
  EXPECT_EQ(num_lines, is_slow ? 1 : 0);
}

// LibTorch's names of features, against the compiler's.
TEST(SlowBf16, ReadsTheFeaturesOfThisMachine) {
  const CpuFeatures cpu = read_cpu_features();
#if defined(__x86_64__)
  EXPECT_TRUE(cpu.is_x86);
  EXPECT_EQ(cpu.has_avx512_bf16, __builtin_cpu_supports("avx512bf16") != 0);
#else
  EXPECT_FALSE(cpu.is_x86);
#endif
}

}  // namespace
}  // namespace accel::precision_recipe_test
