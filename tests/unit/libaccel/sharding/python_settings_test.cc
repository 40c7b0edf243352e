// What workers in Python are told; tests/peer/parallelism.py lets Accelerate read it.

#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/accelerator.h>
#include <accel/custom_dtype.h>
#include <accel/dynamo_plugin.h>
#include <accel/error.h>
#include <accel/fp8_recipe.h>

#include "tests/support/error_of.h"

namespace accel::python_settings_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

EnvLookup env(std::map<std::string, std::string> variables = {}) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(Fp8Environment, HasEveryFieldOfItsLibraryAndNoneOfOthers) {
  const auto of_ao = fp8_environment(AORecipeKwargs{.pad_inner_dim = false}, env());
  EXPECT_THAT(
      of_ao,
      ::testing::UnorderedElementsAre(Pair("ACCELERATE_MIXED_PRECISION", "fp8"),
                                      Pair("ACCELERATE_FP8_BACKEND", "AO"),
                                      Pair("ACCELERATE_FP8_PAD_INNER_DIM", "0"),
                                      Pair("ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER", "1")));
  EXPECT_THAT(fp8_environment(MSAMPRecipeKwargs{}, env()),
              AllOf(Contains(Pair("ACCELERATE_FP8_OPT_LEVEL", "O2")),
                    Contains(Pair("ACCELERATE_FP8_BACKEND", "MSAMP")),
                    Not(Contains(Key("ACCELERATE_FP8_MARGIN")))));
}

TEST(Fp8Environment, TakesWhatIsLeftOutFromTheVariables) {
  EXPECT_THAT(fp8_environment(
                  TERecipeKwargs{.margin = 2, .override_linear_precision = {{false, false, true}}},
                  env({{"ACCELERATE_FP8_MARGIN", "7"}, {"ACCELERATE_FP8_FORMAT", "e4m3"}})),
              IsSupersetOf({Pair("ACCELERATE_FP8_MARGIN", "2"),
                            Pair("ACCELERATE_FP8_FORMAT", "E4M3"),
                            Pair("ACCELERATE_FP8_AMAX_COMPUTE_ALGO", "most_recent"),
                            Pair("ACCELERATE_FP8_OVERRIDE_FPROP", "0"),
                            Pair("ACCELERATE_FP8_OVERRIDE_WGRAD", "1")}));
}

TEST(Fp8Environment, AFieldThatIsNoneOfItsChoicesIsNamed) {
  const Error field = test::error_of(
      [] { std::ignore = fp8_environment(TERecipeKwargs{.fp8_format = "E8M0"}, env()); });
  EXPECT_EQ(field.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(field.message(),
            "the field for ACCELERATE_FP8_FORMAT is 'E8M0', expected one of HYBRID, E4M3, E5M2");
  const Error variable = test::error_of([] {
    std::ignore = fp8_environment(MSAMPRecipeKwargs{}, env({{"ACCELERATE_FP8_OPT_LEVEL", "O3"}}));
  });
  EXPECT_EQ(variable.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(variable.message(), HasSubstr("ACCELERATE_FP8_OPT_LEVEL is 'O3'"));
  const Error backend =
      test::error_of([] { std::ignore = fp8_backend(FP8RecipeKwargs{.backend = "ao"}, env()); });
  EXPECT_EQ(backend.message(),
            "the field for ACCELERATE_FP8_BACKEND is 'ao', expected one of TE, MSAMP");
}

TEST(Fp8Backend, IsThatOfTheRecipeElseOfTheVariable) {
  EXPECT_EQ(fp8_backend(TERecipeKwargs{}, env()), FP8BackendType::kTe);
  EXPECT_EQ(fp8_backend(FP8RecipeKwargs{.backend = "msamp"}, env()), FP8BackendType::kMsamp);
  EXPECT_EQ(fp8_backend(env()), FP8BackendType::kNo);
  EXPECT_EQ(fp8_backend(env({{"ACCELERATE_FP8_BACKEND", "ao"}})), FP8BackendType::kAo);
}

TEST(Fp8Backend, AnAcceleratorRefusesFp8AndARecipeByName) {
  const Error precision =
      test::error_of([] { Accelerator accelerator({.mixed_precision = "fp8"}); });
  EXPECT_EQ(precision.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(precision.message(), HasSubstr("mixed precision fp8"));
  const Error recipe =
      test::error_of([] { Accelerator accelerator({.fp8_recipe = TERecipeKwargs{}}); });
  EXPECT_EQ(recipe.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(recipe.message(), HasSubstr("fp8_recipe is set (TE)"));
  EXPECT_THAT(recipe.remedy(), HasSubstr("bf16"));
}

TEST(DynamoEnvironment, SaysWhatIsSetAndTheDefaultsOfAccelerate) {
  EXPECT_THAT(dynamo_environment({.backend = DynamoBackend::kAotEager, .dynamic = false}, env()),
              IsSupersetOf({Pair("ACCELERATE_DYNAMO_BACKEND", "AOT_EAGER"),
                            Pair("ACCELERATE_DYNAMO_MODE", "default"),
                            Pair("ACCELERATE_DYNAMO_USE_DYNAMIC", "0"),
                            Pair("ACCELERATE_DYNAMO_USE_FULLGRAPH", "0")}));
  EXPECT_THAT(dynamo_environment({}, env()), Not(Contains(Key("ACCELERATE_DYNAMO_USE_DYNAMIC"))));
  EXPECT_THAT(
      test::error_of([] { std::ignore = dynamo_environment({.mode = "fast"}, env()); }).message(),
      HasSubstr("MODE is 'fast', expected one of default, reduce-overhead, max-autotune"));
}

TEST(CustomDtype, HasTheTextsOfAccelerate) {
  EXPECT_EQ(to_string(CustomDtype::kFp8), "fp8");
  EXPECT_EQ(parse<CustomDtype>("int4"), CustomDtype::kInt4);
  EXPECT_EQ(parse<CustomDtype>("int2"), CustomDtype::kInt2);
}

}  // namespace
}  // namespace accel::python_settings_test
