#include "libaccel/engine/settings/settings_agreement.h"

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/rank_group.h"

namespace accel::sharding::settings_agreement_test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(SettingsAgreement, NamesTheFirstOptionThatDiffers) {
  FsdpSettings other;
  other.shard_by_tensor = true;
  other.state_dict_type = StateDictType::kFull;

  EXPECT_EQ(first_differing_option(describe(FsdpSettings{}, {}), describe(FsdpSettings{}, {})),
            std::nullopt);
  EXPECT_EQ(first_differing_option(describe(FsdpSettings{}, {}), describe(other, {})),
            "has shard_by_tensor true where rank 0 has shard_by_tensor false");
  EXPECT_EQ(first_differing_option(describe(std::nullopt, {}), describe(other, {})),
            "has fsdp_version 1 where rank 0 has fsdp_plugin unset");
}

TEST(SettingsAgreement, TextsThatDifferAreNeverTakenForEqual) {
  EXPECT_EQ(first_differing_option("a 1\n", "a 1\nb 2\n"),
            "describes 2 lines of options where rank 0 has 1");
}

TEST(SettingsAgreement, WhatARankFetchesAheadIsItsOwn) {
  FsdpSettings other;
  other.paging.units_ahead = 4;

  EXPECT_EQ(describe(other, {}), describe(FsdpSettings{}, {}));
}

using Plugin = FullyShardedDataParallelPlugin;

// What rank 0 says: the plugin of rank 1 is another one.
std::string complaint(const std::function<void(std::optional<Plugin>&)>& change) {
  std::optional<Plugin> plugin = Plugin{};
  PartialState state;
  if (state.process_index() == 1) change(plugin);
  AcceleratorOptions options;
  options.fsdp_plugin = plugin;
  Accelerator accelerator(options);
  torch::nn::Linear net(4, 4);
  try {
    accelerator.prepare(net);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), StartsWith("the plugin of rank 1 has "));
    return error.message();
  }
  return "nothing";
}

TEST(SettingsAgreement, RanksThatDisagreeAreToldOfTheOptionBeforeTheModelIsDivided) {
  test::run_ranks(2, [] {
    const std::vector<std::pair<std::string, std::function<void(std::optional<Plugin>&)>>> changes{
        {"has sharding_strategy NO_SHARD where rank 0 has sharding_strategy FULL_SHARD",
         [](auto& plugin) { plugin->sharding_strategy = ShardingStrategy::kNoShard; }},
        {"auto_wrap_policy SIZE_BASED_WRAP",
         [](auto& plugin) {
           plugin->auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
           plugin->min_num_params = 4;
         }},
        {"ignored_modules 'a'",
         [](auto& plugin) { plugin->ignored_modules = std::vector<std::string>{"a"}; }},
        {"shard_by_tensor true", [](auto& plugin) { plugin->shard_by_tensor = true; }},
        {"cpu_ram_efficient_loading true",
         [](auto& plugin) { plugin->cpu_ram_efficient_loading = true; }},
        {"sync_module_states false", [](auto& plugin) { plugin->sync_module_states = false; }},
        {"param_dtype BFloat16", [](auto& plugin) { plugin->mixed_precision_policy = "bf16"; }},
        {"reduce_dtype BFloat16",
         [](auto& plugin) {
           plugin->mixed_precision_policy = MixedPrecisionPolicy{.reduce_dtype = at::kBFloat16};
         }},
        {"state_dict_type FULL_STATE_DICT",
         [](auto& plugin) { plugin->state_dict_type = StateDictType::kFull; }}};
    for (const auto& [expected, change] : changes)
      EXPECT_THAT(complaint(change), HasSubstr(expected));
    EXPECT_EQ(complaint([](auto&) {}), "nothing");
  });
}

TEST(SettingsAgreement, ARankWithoutAPluginIsToldToo) {
  test::run_ranks(2, [] {
    EXPECT_THAT(complaint([](auto& plugin) { plugin.reset(); }),
                HasSubstr("has fsdp_plugin unset where rank 0 has fsdp_version 1"));
  });
}

}  // namespace
}  // namespace accel::sharding::settings_agreement_test
