#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/parallelism_config.h>

#include "libaccel/engine/settings/parallelism_settings.h"
#include "tests/support/error_of.h"
#include "tests/support/numbers.h"

namespace accel::sharding::parallelism_config_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Plugin = FullyShardedDataParallelPlugin;

EnvLookup env(std::map<std::string, std::string> variables = {}) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

// All sizes of axes whose product is `total`.
std::vector<ParallelismConfig> configs_of(int total) {
  std::vector<ParallelismConfig> configs;
  for (int replicate = 1; replicate <= total; ++replicate) {
    for (int shard = 1; shard <= total; ++shard) {
      for (int tensor = 1; tensor <= total; ++tensor) {
        for (int context = 1; context <= total; ++context) {
          if (replicate * shard * tensor * context != total) continue;
          configs.push_back({.dp_replicate_size = replicate,
                             .dp_shard_size = shard,
                             .tp_size = tensor,
                             .cp_size = context});
        }
      }
    }
  }
  return configs;
}

TEST(ParallelismConfig, TakesWhatIsLeftOutFromTheVariablesAndElseOne) {
  const ParallelismConfig config =
      ParallelismConfig{.dp_shard_size = 3}.resolved(env({{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "9"},
                                                          {"PARALLELISM_CONFIG_TP_SIZE", "2"},
                                                          {"PARALLELISM_CONFIG_CP_SIZE", ""}}));

  EXPECT_EQ(config.dp_replicate_size, 1);
  EXPECT_EQ(config.dp_shard_size, 3);
  EXPECT_EQ(config.tp_size, 2);
  EXPECT_EQ(config.cp_size, 1);
  EXPECT_EQ(config.cp_backend, "torch");
  EXPECT_EQ(config.sp_backend, "deepspeed");
  EXPECT_EQ(config.total_size(), 6);
  EXPECT_EQ(config.to_json(),
            R"({"dp_replicate_size":1,"dp_shard_size":3,"tp_size":2,"cp_size":1,)"
            R"("cp_backend":"torch","sp_size":1,"sp_backend":"deepspeed"})");
}

TEST(ParallelismConfig, AVariableThatIsNoNumberIsNamed) {
  for (const char* value : {"x", "2.5", "0", "-1", "99999999999"}) {
    const Error error = test::error_of([&] {
      std::ignore =
          ParallelismConfig{}.resolved(env({{"PARALLELISM_CONFIG_DP_SHARD_SIZE", value}}));
    });
    EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr(std::string("PARALLELISM_CONFIG_DP_SHARD_SIZE is '") + value),
                      HasSubstr("a whole number of at least 1")));
  }
  const Error error = test::error_of([&] {
    std::ignore = ParallelismConfig{}.resolved(env({{"PARALLELISM_CONFIG_CP_BACKEND", "ring"}}));
  });
  EXPECT_THAT(error.message(), HasSubstr("PARALLELISM_CONFIG_CP_BACKEND is 'ring'"));
}

TEST(ParallelismConfig, SizesThatMakeNoSenseAreNamed) {
  const auto message = [](const ParallelismConfig& config) {
    const Error error = test::error_of([&] { std::ignore = config.resolved(env()); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  };
  EXPECT_EQ(message({.dp_replicate_size = 0}), "dp_replicate_size must be at least 1, but got 0");
  EXPECT_EQ(message({.sp_size = -2}), "sp_size must be at least 1, but got -2");
  EXPECT_EQ(message({.cp_backend = "ring"}), "cp_backend must be one of ['torch'], but got ring");
  EXPECT_THAT(message({.cp_size = 2, .sp_size = 3}), HasSubstr("mutually exclusive"));
  EXPECT_THAT(message({.dp_replicate_size = 2, .tp_size = 2}), HasSubstr("dp_shard_size is 1"));
}

TEST(ParallelismConfig, NamesTheAxesAboveOne) {
  const ParallelismConfig config{.dp_replicate_size = 2, .tp_size = 4, .cp_size = 3};

  EXPECT_THAT(config.dp_dim_names(), ElementsAre("dp_replicate"));
  EXPECT_THAT(config.non_dp_dim_names(), ElementsAre("tp", "cp"));
  EXPECT_THAT(config.dp_shard_cp_dim_names(), ElementsAre("cp"));
  EXPECT_THAT(config.dp_cp_dim_names(), ElementsAre("dp_replicate", "cp"));
  EXPECT_THAT(config.fsdp_dim_names(), ElementsAre("dp_replicate", "dp_shard_cp"));
  EXPECT_THAT(config.active_mesh_dims(), ElementsAre("dp_replicate", "tp", "cp"));
  EXPECT_EQ(config.data_parallel_size(), 2);
  EXPECT_EQ(config.non_data_parallel_size(), 12);
  EXPECT_EQ(config.to_string(), "dp_replicate_size 2 x cp_size 3 x tp_size 4");
  EXPECT_THAT(ParallelismConfig{}.active_mesh_dims(), IsEmpty());
  EXPECT_EQ(ParallelismConfig{}.to_string(), "1");
}

TEST(ParallelismConfig, AProductThatIsTooLargeIsTheLargestNumber) {
  constexpr int kMany = 2147483647;
  EXPECT_EQ((ParallelismConfig{.dp_replicate_size = kMany, .dp_shard_size = kMany, .tp_size = kMany}
                 .total_size()),
            INT64_MAX);
}

TEST(DeviceMesh, IsInTheOrderOfTheRanksWithTheLastAxisFirst) {
  const ParallelismConfig config{.dp_replicate_size = 2, .dp_shard_size = 3, .tp_size = 2};
  const DeviceMesh mesh = *config.build_device_mesh(9);

  EXPECT_THAT(mesh.mesh_dim_names, ElementsAre("dp_replicate", "dp_shard", "tp"));
  EXPECT_THAT(mesh.shape, ElementsAre(2, 3, 2));
  EXPECT_THAT(mesh.coordinate, ElementsAre(1, 1, 1));
  EXPECT_EQ(mesh.size(), 12);
  EXPECT_EQ(mesh.size("dp"), 6);
  EXPECT_EQ(mesh.get_local_rank("dp"), 4);
  EXPECT_EQ(mesh.get_local_rank("dp_shard_cp"), 1);
  EXPECT_EQ(ParallelismConfig{}.build_device_mesh(3), std::nullopt)
      << "what divides decides itself";
}

TEST(DeviceMesh, AnAxisOrAProcessThatIsNotThereIsNamed) {
  const ParallelismConfig config{.dp_shard_size = 2};
  EXPECT_THAT(
      test::error_of([&] { std::ignore = config.build_device_mesh(0)->size("tp"); }).message(),
      HasSubstr("no axis 'tp'; it has dp_shard"));
  EXPECT_THAT(test::error_of([&] { std::ignore = config.build_device_mesh(2); }).message(),
              HasSubstr("process 2 is not in a mesh of 2 processes"));
}

// Processes that differ along tp or cp read the same, all others differ, and together they read everything.
TEST(DataShare, IsOfTheAxesAlongWhichBatchesDiffer) {
  for (const int total : {2, 6, 12, 24}) {
    for (const ParallelismConfig& config : configs_of(total)) {
      std::map<int, std::set<std::vector<int>>> readers;  // by share
      for (int rank = 0; rank < total; ++rank) {
        const DeviceMesh mesh = *config.build_device_mesh(rank);
        const DataShare share = data_share(mesh);
        ASSERT_EQ(share.count, config.data_parallel_size());
        // As Accelerate has it where the other axes are the inner ones.
        ASSERT_EQ(share.index, rank / config.non_data_parallel_size());
        readers[share.index].insert(mesh.coordinate);
      }
      ASSERT_EQ(std::ssize(readers), config.data_parallel_size());
      for (const auto& [share, places] : readers)
        ASSERT_EQ(std::ssize(places), config.non_data_parallel_size());
    }
  }
}

TEST(DataShare, LoadersOfOneTensorParallelGroupYieldTheSameBatches) {
  const ParallelismConfig config{.dp_shard_size = 2, .tp_size = 2};
  std::vector<test::NumberBatches> seen;
  for (int rank = 0; rank < 4; ++rank) {
    const auto loader =
        prepare_data_loader(DataLoader(test::Numbers{8}, {.batch_size = 2}),
                            ShardOptions{.torch_device_mesh = config.build_device_mesh(rank)});
    EXPECT_EQ(loader.total_batch_size(), 4);
    seen.push_back(test::pass_of(loader));
  }

  EXPECT_EQ(seen[0], (test::NumberBatches{{0, 1}, {4, 5}}));
  EXPECT_EQ(seen[1], seen[0]);
  EXPECT_EQ(seen[2], (test::NumberBatches{{2, 3}, {6, 7}}));
  EXPECT_EQ(seen[3], seen[2]);
}

TEST(ParallelismSettings, DividingAloneIsFsdpOfVersion2) {
  const ParallelismConfig config = ParallelismConfig{.dp_shard_size = 4}.resolved(env());
  const FsdpSettings settings = *resolve_fsdp(std::nullopt, config, env());

  EXPECT_EQ(settings.version, 2);
  EXPECT_EQ(settings.strategy, ShardingStrategy::kFullShard);
  EXPECT_EQ(settings.layout->shard, 4);
  EXPECT_EQ(resolve_fsdp(std::nullopt, ParallelismConfig{}.resolved(env()), env()), std::nullopt);
  EXPECT_EQ(
      resolve_fsdp(std::nullopt, ParallelismConfig{.dp_replicate_size = 4}.resolved(env()), env()),
      std::nullopt);
}

TEST(ParallelismSettings, CopiesThatAreDividedAreHybrid) {
  const ParallelismConfig config =
      ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 3}.resolved(env());

  const FsdpSettings whole = *resolve_fsdp(std::nullopt, config, env());
  EXPECT_EQ(whole.strategy, ShardingStrategy::kHybridShard);
  EXPECT_EQ(whole.layout->replicate, 2);
  EXPECT_EQ(whole.layout->shard, 3);
  EXPECT_EQ(resolve_fsdp(Plugin{.fsdp_version = 2, .reshard_after_forward = false}, config, env())
                ->strategy,
            ShardingStrategy::kHybridShardZero2);
  EXPECT_EQ(resolve_fsdp(Plugin{.sharding_strategy = ShardingStrategy::kHybridShard}, config, env())
                ->strategy,
            ShardingStrategy::kHybridShard);
}

TEST(ParallelismSettings, APluginThatContradictsThemIsRefused) {
  const auto refusal = [](const Plugin& plugin, const ParallelismConfig& config) {
    const Error error =
        test::error_of([&] { std::ignore = resolve_fsdp(plugin, config.resolved(env()), env()); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    return error.message();
  };
  EXPECT_THAT(refusal({.sharding_strategy = ShardingStrategy::kNoShard}, {.dp_shard_size = 2}),
              AllOf(HasSubstr("sharding_strategy is NO_SHARD"), HasSubstr("dp_shard_size 2")));
  EXPECT_THAT(refusal({.sharding_strategy = ShardingStrategy::kHybridShard}, {.dp_shard_size = 2}),
              HasSubstr("that is one copy"));
  EXPECT_THAT(refusal({}, {.dp_replicate_size = 2}), HasSubstr("no axis for FSDP to divide along"));
  EXPECT_THAT(refusal({.fsdp_version = 1}, {.dp_shard_size = 2}),
              AllOf(HasSubstr("fsdp_version is 1"), HasSubstr("dp_shard_size 2")));
}

TEST(ParallelismSettings, AxesOfOperatorsAndSequencesAreRefused) {
  const Error given = test::error_of([&] {
    std::ignore = asked_parallelism(ParallelismConfig{.dp_shard_size = 2, .tp_size = 2}, env());
  });
  EXPECT_EQ(given.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(given.message(), AllOf(HasSubstr("tp_size 2"), HasSubstr("no operator")));

  const std::map<std::string, std::string> launched = {
      {"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}, {"PARALLELISM_CONFIG_TP_SIZE", "2"}};
  const Error of_launcher =
      test::error_of([&] { std::ignore = asked_parallelism(std::nullopt, env(launched)); });
  EXPECT_EQ(of_launcher.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(
      of_launcher.message(),
      AllOf(HasSubstr("PARALLELISM_CONFIG_TP_SIZE"), HasSubstr("--parallelism_config_tp_size")));
}

TEST(ParallelismSettings, CountOnlyWhereTheyAreAskedFor) {
  std::map<std::string, std::string> variables = {{"PARALLELISM_CONFIG_DP_SHARD_SIZE", "4"}};
  EXPECT_EQ(asked_parallelism(std::nullopt, env(variables)), std::nullopt);

  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  EXPECT_EQ(asked_parallelism(std::nullopt, env(variables))->dp_shard_size, 4);
}

TEST(ParallelismSettings, MakeAsManyProcessesAsTheJobHas) {
  const ParallelismConfig config =
      ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 3}.resolved(env());
  EXPECT_EQ(fitted(config, 6, Divides::kByFsdp), config);

  const Error error = test::error_of([&] { std::ignore = fitted(config, 8, Divides::kByFsdp); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(),
            "the sizes of the ParallelismConfig make 6 processes (dp_replicate_size 2 x "
            "dp_shard_size 3), and the job has 8");
}

TEST(ParallelismSettings, SizesOfOneAreAllCopiesOrSayNothing) {
  const ParallelismConfig ones = ParallelismConfig{}.resolved(env());
  EXPECT_EQ(fitted(ones, 4, Divides::kNothing).dp_replicate_size, 4);
  EXPECT_EQ(fitted(ones, 4, Divides::kByFsdp), ones);
  EXPECT_EQ(fitted(ones, 4, Divides::kByZero), ones);
  EXPECT_EQ(fitted(ones, 1, Divides::kNothing), ones);
}

TEST(ParallelismSettings, DeepSpeedDividesOverAllProcesses) {
  const ParallelismConfig config =
      ParallelismConfig{.dp_replicate_size = 2, .dp_shard_size = 2}.resolved(env());
  const Error error = test::error_of([&] { std::ignore = fitted(config, 4, Divides::kByZero); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace accel::sharding::parallelism_config_test
