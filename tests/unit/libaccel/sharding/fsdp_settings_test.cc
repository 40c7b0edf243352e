// The peer's options and its environment, and what they come to.

#include "libaccel/engine/settings/fsdp_settings.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/error_of.h"

namespace accel::sharding::fsdp_settings_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

EnvLookup env(std::map<std::string, std::string> variables = {}) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

Error error_of(const FullyShardedDataParallelPlugin& plugin, const EnvLookup& lookup = env()) {
  return test::error_of([&] { std::ignore = resolve(plugin, lookup); });
}

// What `accelerate launch --use_fsdp --num_processes 2` sets.
const std::map<std::string, std::string> kLaunched{
    {"ACCELERATE_USE_FSDP", "true"},
    {"FSDP_ACTIVATION_CHECKPOINTING", "false"},
    {"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"},
    {"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
    {"FSDP_FORWARD_PREFETCH", "false"},
    {"FSDP_MIN_NUM_PARAMS", "100000000"},
    {"FSDP_OFFLOAD_PARAMS", "false"},
    {"FSDP_RESHARD_AFTER_FORWARD", "true"},
    {"FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
    {"FSDP_SYNC_MODULE_STATES", "true"},
    {"FSDP_USE_ORIG_PARAMS", "true"},
    {"FSDP_VERSION", "1"}};

TEST(FsdpSettings, ShardsEverythingWithoutAWord) {
  const FsdpSettings settings = resolve({}, env());
  EXPECT_EQ(settings.strategy, ShardingStrategy::kFullShard);
  EXPECT_EQ(settings.wrap, AutoWrapPolicy::kNoWrap);
  EXPECT_TRUE(settings.sync_module_states);
  EXPECT_THAT(settings.notices, IsEmpty());
}

TEST(FsdpSettings, ReadsWhatTheLauncherOfThePeerSets) {
  EXPECT_TRUE(environment_wants_fsdp(env(kLaunched)));
  EXPECT_FALSE(environment_wants_fsdp(env()));
  const FsdpSettings settings = resolve({}, env(kLaunched));
  EXPECT_EQ(settings.strategy, ShardingStrategy::kFullShard);
  EXPECT_THAT(settings.notices, IsEmpty());
}

TEST(FsdpSettings, TakesStrategiesByNameAndByThePeersNumber) {
  const auto strategy_of = [](const std::string& text) {
    return resolve({}, env({{"FSDP_SHARDING_STRATEGY", text}})).strategy;
  };
  EXPECT_EQ(strategy_of("SHARD_GRAD_OP"), ShardingStrategy::kShardGradOp);
  EXPECT_EQ(strategy_of("hybrid_shard_zero2"), ShardingStrategy::kHybridShardZero2);
  EXPECT_EQ(strategy_of("1"), ShardingStrategy::kFullShard);
  EXPECT_EQ(strategy_of("5"), ShardingStrategy::kHybridShardZero2);
  const Error error = error_of({}, env({{"FSDP_SHARDING_STRATEGY", "6"}}));
  EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(error.message(),
              HasSubstr("FSDP_SHARDING_STRATEGY is '6', expected one of FULL_SHARD"));
}

TEST(FsdpSettings, PrefersThePluginToTheEnvironment) {
  const FsdpSettings settings =
      resolve({.sharding_strategy = ShardingStrategy::kShardGradOp}, env(kLaunched));
  EXPECT_EQ(settings.strategy, ShardingStrategy::kShardGradOp);
}

TEST(FsdpSettings, TakesStateDictTypesByNameAndByThePeersNumber) {
  const auto type_of = [](const std::string& text) {
    return resolve({}, env({{"FSDP_STATE_DICT_TYPE", text}})).state_dict_type;
  };
  EXPECT_EQ(resolve({}, env()).state_dict_type, StateDictType::kSharded);
  EXPECT_EQ(type_of("FULL_STATE_DICT"), StateDictType::kFull);
  EXPECT_EQ(type_of("local_state_dict"), StateDictType::kLocal);
  EXPECT_EQ(type_of("3"), StateDictType::kSharded);
  EXPECT_EQ(resolve({.state_dict_type = StateDictType::kLocal},
                    env({{"FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT"}}))
                .state_dict_type,
            StateDictType::kLocal);
  const Error error = error_of({}, env({{"FSDP_STATE_DICT_TYPE", "WHOLE"}}));
  EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(error.message(),
              HasSubstr("FSDP_STATE_DICT_TYPE is 'WHOLE', expected one of FULL_STATE_DICT, "
                        "LOCAL_STATE_DICT, SHARDED_STATE_DICT"));
  EXPECT_THAT(error_of({.fsdp_version = 2, .state_dict_type = StateDictType::kLocal}).message(),
              HasSubstr("LOCAL_STATE_DICT is not for FSDP version 2"));
}

TEST(FsdpSettings, MapsReshardAfterForwardOfVersion2ToAStrategy) {
  EXPECT_EQ(resolve({.fsdp_version = 2}, env()).strategy, ShardingStrategy::kFullShard);
  EXPECT_EQ(resolve({.fsdp_version = 2, .reshard_after_forward = false}, env()).strategy,
            ShardingStrategy::kShardGradOp);
  EXPECT_EQ(
      resolve({}, env({{"FSDP_VERSION", "2"}, {"FSDP_RESHARD_AFTER_FORWARD", "false"}})).strategy,
      ShardingStrategy::kShardGradOp);
  EXPECT_THAT(error_of({.fsdp_version = 1, .reshard_after_forward = true}).message(),
              HasSubstr("reshard_after_forward is an option of FSDP version 2"));
  EXPECT_THAT(error_of({.fsdp_version = 3}).message(),
              HasSubstr("fsdp_version is 3, expected 1 or 2"));
}

TEST(FsdpSettings, ReadsTheClassesOfTransformerBasedWrap) {
  const FsdpSettings settings =
      resolve({},
              env({{"FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP"},
                   {"FSDP_TRANSFORMER_CLS_TO_WRAP", "Block, Embedding"}}));
  EXPECT_EQ(settings.wrap, AutoWrapPolicy::kTransformerBasedWrap);
  EXPECT_THAT(settings.transformer_classes, ElementsAre("Block", "Embedding"));
  EXPECT_THAT(error_of({.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap}).message(),
              HasSubstr("names no class"));
}

TEST(FsdpSettings, TakesSizeBasedWrapWithoutASizeForNone) {
  FullyShardedDataParallelPlugin plugin{.auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap};
  EXPECT_EQ(resolve(plugin, env()).wrap, AutoWrapPolicy::kNoWrap);
  plugin.min_num_params = 7;
  EXPECT_EQ(resolve(plugin, env()).wrap, AutoWrapPolicy::kSizeBasedWrap);
  plugin.min_num_params = -1;
  EXPECT_THAT(error_of(plugin).message(), HasSubstr("min_num_params is -1"));
}

TEST(FsdpSettings, ReadsTheSizeForOtherPoliciesToo) {
  const Error error = error_of({}, env({{"FSDP_MIN_NUM_PARAMS", "1e3"}}));
  EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(error.message(), HasSubstr("FSDP_MIN_NUM_PARAMS is '1e3', expected a whole number"));
  EXPECT_THAT(error_of({.min_num_params = -1}).message(), HasSubstr("min_num_params is -1"));
  EXPECT_EQ(resolve({}, env({{"FSDP_MIN_NUM_PARAMS", "1000"}})).min_num_params, 0);
}

TEST(FsdpSettings, SaysThatInputsOfUnitsAreInHostMemoryAnyhow) {
  std::map<std::string, std::string> variables = {{"FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "true"},
                                                  {"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                                                  {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
                                                  {"FSDP_MIN_NUM_PARAMS", "1000"},
                                                  {"FSDP_VERSION", "2"}};
  EXPECT_THAT(resolve({}, env(variables)).notices,
              ElementsAre(HasSubstr("ACTIVATION_CHECKPOINTING_OFFLOAD true changes nothing")));

  variables["FSDP_VERSION"] = "1";
  const Error error = error_of({}, env(variables));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("needs activation_checkpointing and version 2"));
}

TEST(FsdpSettings, ReadsWhetherUnitsAreComputedAgain) {
  const EnvLookup asked = env({{"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                               {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
                               {"FSDP_MIN_NUM_PARAMS", "1000"}});
  EXPECT_TRUE(resolve({}, asked).recomputes_activations);
  EXPECT_FALSE(resolve({.activation_checkpointing = false}, asked).recomputes_activations);
  EXPECT_FALSE(resolve({}, env()).recomputes_activations);

  const Error error = error_of({.activation_checkpointing = true});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("without an auto_wrap_policy"));
  EXPECT_THAT(error.remedy(), HasSubstr("TRANSFORMER_BASED_WRAP"));
}

TEST(FsdpSettings, TakeTheGranularityOfRecomputation) {
  const auto asked = env({{"FSDP_ACTIVATION_CHECKPOINTING", "true"},
                          {"ACCEL_FSDP_RECOMPUTE_GRANULARITY", "selective"},
                          {"FSDP_AUTO_WRAP_POLICY", "SIZE_BASED_WRAP"},
                          {"FSDP_MIN_NUM_PARAMS", "1000"}});
  EXPECT_EQ(resolve({}, asked).recompute_granularity, RecomputeGranularity::kSelective);
  EXPECT_EQ(
      resolve({.recompute_granularity = RecomputeGranularity::kFull}, asked).recompute_granularity,
      RecomputeGranularity::kFull);

  const Error error = error_of({.recompute_granularity = RecomputeGranularity::kSelective});
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.remedy(), HasSubstr("set activation_checkpointing"));
}

TEST(FsdpSettings, SaysWhichOptionsChangeNothing) {
  EXPECT_THAT(resolve({}, env({{"FSDP_USE_ORIG_PARAMS", "false"}})).notices,
              ElementsAre(HasSubstr("FSDP_USE_ORIG_PARAMS) false has no effect")));
  EXPECT_THAT(resolve({.use_orig_params = false}, env()).notices,
              ElementsAre(HasSubstr("use_orig_params")));
  const auto says_offload = ElementsAre(
      AllOf(HasSubstr("FSDP_OFFLOAD_PARAMS) true changes nothing"), HasSubstr("in host memory")));
  EXPECT_THAT(resolve({.cpu_offload = true}, env()).notices, says_offload);
  EXPECT_THAT(resolve({}, env({{"FSDP_OFFLOAD_PARAMS", "true"}})).notices, says_offload);
  EXPECT_TRUE(
      resolve({.cpu_offload = false}, env({{"FSDP_OFFLOAD_PARAMS", "true"}})).notices.empty());
}

TEST(FsdpSettings, FetchesNothingAheadWithoutPrefetch) {
  const auto ahead = [](const FullyShardedDataParallelPlugin& plugin, const EnvLookup& lookup) {
    return resolve(plugin, lookup).paging.units_ahead;
  };
  EXPECT_EQ(ahead({}, env(kLaunched)), 1);
  EXPECT_EQ(ahead({}, env({{"FSDP_BACKWARD_PREFETCH", "BACKWARD_POST"}})), 1);
  EXPECT_EQ(ahead({}, env({{"FSDP_BACKWARD_PREFETCH", "NO_PREFETCH"}})), 0);
  EXPECT_EQ(ahead({}, env({{"FSDP_BACKWARD_PREFETCH", "3"}})), 0);  // the peer's number
  EXPECT_EQ(ahead({}, env({{"FSDP_BACKWARD_PREFETCH", "3"}, {"FSDP_FORWARD_PREFETCH", "true"}})),
            1);
  EXPECT_EQ(ahead({.backward_prefetch = BackwardPrefetch::kNoPrefetch}, env()), 0);
  EXPECT_EQ(ahead({.backward_prefetch = BackwardPrefetch::kNoPrefetch, .limit_all_gathers = false},
                  env()),
            0);
  EXPECT_EQ(error_of({}, env({{"FSDP_BACKWARD_PREFETCH", "SOON"}})).code(), ErrorCode::kEnvInvalid);
}

TEST(FsdpSettings, KeepsMoreUnitsWithoutALimitOfAllGathers) {
  EXPECT_EQ(resolve({}, env()).paging.live_units, 3U);
  const PagingLimits unlimited = resolve({.limit_all_gathers = false}, env()).paging;
  EXPECT_EQ(unlimited.live_units, 6U);
  EXPECT_EQ(unlimited.units_ahead, 4);
}

TEST(FsdpSettings, TakesAFolderOfParametersWhereTheyAreDivided) {
  const FsdpSettings settings = resolve({.offload_param_nvme_path = "/fast"}, env());
  EXPECT_EQ(settings.parameter_folder, "/fast");
  EXPECT_EQ(settings.optimizer_folder, "");
  for (const ShardingStrategy strategy :
       {ShardingStrategy::kNoShard, ShardingStrategy::kShardGradOp}) {
    const Error error =
        error_of({.sharding_strategy = strategy, .offload_param_nvme_path = "/fast"});
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr(std::string(to_string(strategy))));
    EXPECT_THAT(error.remedy(), HasSubstr("FULL_SHARD"));
  }
}

TEST(FsdpSettings, RefusesToLoadOnRankZeroAloneAndToSendNothing) {
  EXPECT_FALSE(resolve({}, env()).cpu_ram_efficient_loading);
  EXPECT_TRUE(resolve({}, env(kLaunched)).cpu_ram_efficient_loading);
  const Error error =
      error_of({.sync_module_states = false}, env({{"FSDP_CPU_RAM_EFFICIENT_LOADING", "true"}}));
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("cpu_ram_efficient_loading"));
  EXPECT_THAT(error.message(), HasSubstr("sync_module_states"));
  const FsdpSettings settings =
      resolve({.sync_module_states = false, .cpu_ram_efficient_loading = false}, env(kLaunched));
  EXPECT_FALSE(settings.cpu_ram_efficient_loading);
}

TEST(FsdpSettings, TakesIgnoredModulesAsAnExpressionOrAsAList) {
  EXPECT_EQ(resolve({}, env({{"FSDP_IGNORED_MODULES", "a|b"}})).ignored_modules, "a|b");
  EXPECT_EQ(resolve({.ignored_modules = "a.*"}, env()).ignored_modules, "a.*");
  const FsdpSettings settings =
      resolve({.ignored_modules = std::vector<std::string>{"a", "b"}}, env());
  EXPECT_THAT(settings.ignored_names, ElementsAre("a", "b"));
  EXPECT_THAT(settings.ignored_modules, IsEmpty());
}

}  // namespace
}  // namespace accel::sharding::fsdp_settings_test
