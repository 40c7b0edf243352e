// The stages of ZeRO and DeepSpeed's environment, and what they come to.

#include "libaccel/engine/settings/zero_settings.h"

#include <cmath>
#include <map>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/error_of.h"

namespace accel::sharding::zero_settings_test {
namespace {

using ::testing::HasSubstr;

EnvLookup env(std::map<std::string, std::string> variables = {}) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Error error_of(const DeepSpeedPlugin& plugin, const EnvLookup& lookup = env()) {
  return test::error_of([&] { std::ignore = resolve_zero(plugin, lookup); });
}

TEST(ZeroSettings, StagesDivideOneThingMoreEach) {
  EXPECT_EQ(resolve_zero({.zero_stage = 0}, env()).strategy, ShardingStrategy::kNoShard);
  const FsdpSettings one = resolve_zero({.zero_stage = 1}, env());
  EXPECT_EQ(one.strategy, ShardingStrategy::kShardGradOp);
  EXPECT_TRUE(one.keeps_whole_gradients);
  const FsdpSettings two = resolve_zero({.zero_stage = 2}, env());
  EXPECT_EQ(two.strategy, ShardingStrategy::kShardGradOp);
  EXPECT_FALSE(two.keeps_whole_gradients);
  EXPECT_EQ(resolve_zero({.zero_stage = 3}, env()).strategy, ShardingStrategy::kFullShard);
}

TEST(ZeroSettings, AreTakenFromTheEnvironmentOfTheLauncherWhereThePluginIsSilent) {
  const EnvLookup launched = env({{"ACCELERATE_USE_DEEPSPEED", "true"},
                                  {"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                                  {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "none"},
                                  {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "none"},
                                  {"ACCELERATE_DEEPSPEED_CONFIG_FILE", "none"},
                                  {"ACCELERATE_GRADIENT_CLIPPING", "none"}});
  EXPECT_TRUE(environment_wants_deepspeed(launched));
  EXPECT_FALSE(environment_wants_deepspeed(env()));
  EXPECT_EQ(resolve_zero({}, launched).strategy, ShardingStrategy::kFullShard);
  EXPECT_EQ(resolve_zero({.zero_stage = 0}, launched).strategy, ShardingStrategy::kNoShard);
}

TEST(ZeroSettings, AreStageTwoWithoutAWord) {
  EXPECT_EQ(resolve_zero({}, env()).strategy, ShardingStrategy::kShardGradOp);
}

TEST(ZeroSettings, NameAStageThatDoesNotExist) {
  const Error error = error_of({.zero_stage = 4});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("zero_stage is 4, expected 0, 1, 2 or 3"));
  const Error unread = error_of({}, env({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "two"}}));
  EXPECT_EQ(unread.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(unread.message(), HasSubstr("ACCELERATE_DEEPSPEED_ZERO_STAGE is 'two'"));
}

TEST(ZeroSettings, TakeTheFolderOfParametersOnDiskWithStage3Alone) {
  const FsdpSettings given = resolve_zero(
      {.zero_stage = 3, .offload_param_device = "nvme", .offload_param_nvme_path = "/fast"}, env());
  EXPECT_EQ(given.parameter_folder, "/fast");
  EXPECT_EQ(given.optimizer_folder, "");
  EXPECT_TRUE(given.notices.empty());
  const FsdpSettings launched =
      resolve_zero({},
                   env({{"ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"},
                        {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "nvme"},
                        {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/launched"}}));
  EXPECT_EQ(launched.parameter_folder, "/launched");
  for (const int stage : {0, 1, 2}) {
    const Error error = error_of(
        {.zero_stage = stage, .offload_param_device = "nvme", .offload_param_nvme_path = "/fast"});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("with zero_stage " + std::to_string(stage)));
    EXPECT_THAT(error.remedy(), HasSubstr("zero_stage 3"));
  }
}

TEST(ZeroSettings, NameTheFolderThatParametersOnDiskLack) {
  const Error error = error_of({.zero_stage = 3, .offload_param_device = "nvme"});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("offload_param_device is 'nvme', and no folder"));
  EXPECT_THAT(error.remedy(), HasSubstr("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH"));
}

TEST(ZeroSettings, TakeTheFolderOfOptimizersOnDisk) {
  const FsdpSettings given = resolve_zero(
      {.offload_optimizer_device = "nvme", .offload_optimizer_nvme_path = "/fast"}, env());
  EXPECT_EQ(given.offload_optimizer_device, "nvme");
  EXPECT_EQ(given.optimizer_folder, "/fast");
  EXPECT_TRUE(given.notices.empty());
  const FsdpSettings launched =
      resolve_zero({},
                   env({{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
                        {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/launched"}}));
  EXPECT_EQ(launched.optimizer_folder, "/launched");
  const FsdpSettings unused = resolve_zero({.offload_optimizer_nvme_path = "/fast"}, env());
  EXPECT_EQ(unused.optimizer_folder, "");
}

TEST(ZeroSettings, NameTheFolderThatOptimizersOnDiskLack) {
  for (const char* none : {"none", ""}) {
    const Error error = error_of({},
                                 env({{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme"},
                                      {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", none}}));
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("offload_optimizer_device is 'nvme'"));
    EXPECT_THAT(error.remedy(), HasSubstr("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH"));
  }
}

TEST(ZeroSettings, SayOnceThatOffloadToHostMemoryChangesNothing) {
  const FsdpSettings both =
      resolve_zero({.offload_optimizer_device = "cpu"},
                   env({{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"}}));
  EXPECT_EQ(both.offload_optimizer_device, "cpu");
  EXPECT_EQ(both.offload_param_device, "cpu");
  EXPECT_THAT(both.notices,
              testing::ElementsAre(testing::AllOf(
                  HasSubstr("offload_optimizer_device, offload_param_device cpu changes nothing"),
                  HasSubstr("in host memory"))));
  const FsdpSettings overruled =
      resolve_zero({.offload_param_device = "none"},
                   env({{"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE", "cpu"}}));
  EXPECT_TRUE(overruled.notices.empty());
}

TEST(ZeroSettings, NameADeviceThatIsNone) {
  const Error error = error_of({.offload_param_device = "disk"});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(),
              HasSubstr("offload_param_device is 'disk', expected none, cpu or nvme"));
  const Error variable =
      error_of({}, env({{"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "gpu"}}));
  EXPECT_EQ(variable.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(variable.message(),
              HasSubstr("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE is 'gpu'"));
}

TEST(ZeroSettings, HaveTheNormThatStepsClipTo) {
  const auto said = [](const char* text) { return env({{"ACCELERATE_GRADIENT_CLIPPING", text}}); };

  EXPECT_EQ(resolve_zero({.gradient_clipping = 0.5}, said("2")).gradient_clipping, 0.5);
  EXPECT_EQ(resolve_zero({}, said("2")).gradient_clipping, 2.0);
  EXPECT_EQ(resolve_zero({}, said("auto")).gradient_clipping, 1.0);
  EXPECT_EQ(resolve_zero({}, said("none")).gradient_clipping, std::nullopt);
  EXPECT_EQ(resolve_zero({.gradient_clipping = 0.0}, said("2")).gradient_clipping, std::nullopt);
}

TEST(ZeroSettings, NameANormThatIsNone) {
  for (const double norm : {-1.0, std::nan(""), HUGE_VAL}) {
    const Error error = error_of({.gradient_clipping = norm});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("expected 0 (no clipping) or a norm above it"));
  }
  for (const char* text : {"-1", "nan", "inf", "much"}) {
    const Error error = error_of({}, env({{"ACCELERATE_GRADIENT_CLIPPING", text}}));
    EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid) << text;
    EXPECT_THAT(error.message(), HasSubstr("ACCELERATE_GRADIENT_CLIPPING is "));
  }
}

}  // namespace
}  // namespace accel::sharding::zero_settings_test
