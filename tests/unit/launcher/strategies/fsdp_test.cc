// --use_fsdp and its options: what the workers are told, and what is refused.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::fsdp_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class FsdpTest : public test::LaunchPlanFixture {};

// Golden: dumped from `accelerate launch --use_fsdp --num_processes 2`, version 1.15.0.
TEST_F(FsdpTest, TheDefaultsAreThoseOfThePeer) {
  num_gpus_ = 2;
  const LaunchPlan result = plan({"--use_fsdp", "--num_processes", "2"});

  const EnvMap expected = {{"ACCELERATE_USE_FSDP", "true"},
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
  EnvMap of_fsdp;
  for (const auto& [name, value] : result.spec.env) {
    if (name.find("FSDP") != std::string::npos) of_fsdp[name] = value;
  }
  EXPECT_EQ(of_fsdp, expected);
  EXPECT_EQ(result.spec.workers.size(), 2u);
  EXPECT_THAT(result.spec.env, Not(Contains(Key("ACCELERATE_USE_CPU"))));
  EXPECT_THAT(result.notices, IsEmpty());
}

TEST_F(FsdpTest, OneWorkerHasRanksAndAStoreToo) {
  const LaunchPlan result = plan({"--use_fsdp", "--num_processes", "1"});

  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
  EXPECT_TRUE(result.spec.store.enabled);
}

TEST_F(FsdpTest, AFlagBeatsTheFileAndTheFileTheDefault) {
  Words words = file(
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
      "  fsdp_min_num_params: 2000\n  offload_params: true\n  fsdp_state_dict_type: "
      "full_state_dict\n");
  words.insert(words.end(), {"--fsdp-min-num-params", "77"});

  EXPECT_THAT(plan(words).spec.env,
              AllOf(Contains(Pair("FSDP_MIN_NUM_PARAMS", "77")),
                    Contains(Pair("FSDP_OFFLOAD_PARAMS", "true")),
                    Contains(Pair("FSDP_STATE_DICT_TYPE", "FULL_STATE_DICT")),
                    Contains(Pair("FSDP_USE_ORIG_PARAMS", "true"))));
}

TEST_F(FsdpTest, AFlagChoosesFsdpWhereTheFileSaysAnotherType) {
  num_gpus_ = 2;
  Words words = file("distributed_type: MULTI_GPU\nnum_processes: 2\n");
  words.emplace_back("--use_fsdp");

  EXPECT_THAT(plan(words).spec.env, Contains(Pair("ACCELERATE_USE_FSDP", "true")));
}

TEST_F(FsdpTest, TheFileSaysItWithoutTheCpu) {
  num_gpus_ = 2;
  const LaunchPlan result = plan(file("distributed_type: FSDP\nnum_processes: 2\n"));
  Words with_cpu = file("distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\n");

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_FSDP", "true")),
                    Not(Contains(Key("ACCELERATE_USE_CPU")))));
  EXPECT_THAT(plan(with_cpu).spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_FSDP", "true")),
                    Contains(Pair("ACCELERATE_USE_CPU", "True"))));
}

TEST_F(FsdpTest, ListsOfAFileAreJoined) {
  const Words words = file(
      "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
      "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
      "  fsdp_transformer_layer_cls_to_wrap: [BertLayer, GptBlock]\n");

  EXPECT_THAT(plan(words).spec.env,
              Contains(Pair("FSDP_TRANSFORMER_CLS_TO_WRAP", "BertLayer,GptBlock")));
}

TEST_F(FsdpTest, TheBytesOfLiveUnitsAreHandedOnAsTheyWereSaid) {
  const auto words = [this](const std::string& value) {
    return file("distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_max_live_bytes: " +
                value + "\n");
  };

  EXPECT_THAT(
      plan({"--use_fsdp", "--num_processes", "2", "--fsdp_max_live_bytes", "512M"}).spec.env,
      Contains(Pair("ACCEL_FSDP_MAX_LIVE_BYTES", "512M")));
  EXPECT_THAT(plan(words("1048576")).spec.env,
              Contains(Pair("ACCEL_FSDP_MAX_LIVE_BYTES", "1048576")));
  EXPECT_THAT(refused(words("many")).message(), HasSubstr("fsdp_max_live_bytes is 'many'"));
}

TEST_F(FsdpTest, TheGranularityOfRecomputationIsHandedOn) {
  EXPECT_THAT(
      plan({"--use_fsdp", "--num_processes", "2", "--fsdp_recompute_granularity", "selective"})
          .spec.env,
      Contains(Pair("ACCEL_FSDP_RECOMPUTE_GRANULARITY", "selective")));
}

TEST_F(FsdpTest, AnOlderNameOfAKeyStillHolds) {
  const LaunchPlan result =
      plan(file("distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n"
                "  fsdp_backward_prefetch_policy: BACKWARD_POST\n"));

  EXPECT_THAT(result.spec.env, Contains(Pair("FSDP_BACKWARD_PREFETCH", "BACKWARD_POST")));
  EXPECT_THAT(result.notices, Contains(HasSubstr("the key is fsdp_backward_prefetch")));
}

TEST_F(FsdpTest, EfficientLoadingNeedsValuesToBeSent) {
  const Error error = refused({"--use_fsdp", "--fsdp_sync_module_states", "false"});

  EXPECT_EQ(error.code(), ErrorCode::kUsage);
  EXPECT_THAT(
      error.message(),
      AllOf(HasSubstr("--fsdp_cpu_ram_efficient_loading"), HasSubstr("--fsdp_sync_module_states")));
  EXPECT_THAT(plan({"--use_fsdp",
                    "--fsdp_sync_module_states",
                    "false",
                    "--fsdp_cpu_ram_efficient_loading",
                    "False"})
                  .spec.env,
              Contains(Pair("FSDP_SYNC_MODULE_STATES", "false")));
}

TEST_F(FsdpTest, AStrategyIsNoAnswerToVersion2) {
  const Error error =
      refused({"--use_fsdp", "--fsdp_version", "2", "--fsdp_reshard_after_forward", "FULL_SHARD"});

  EXPECT_THAT(error.message(), HasSubstr("expected true or false with --fsdp_version 2"));
  EXPECT_THAT(
      plan({"--use_fsdp", "--fsdp_version", "2", "--fsdp_sharding_strategy", "NO_SHARD"}).notices,
      Contains(HasSubstr("give fsdp_reshard_after_forward")));
}

TEST_F(FsdpTest, AFileOfVersion2ThatSaysAStrategyIsToldSo) {
  const LaunchPlan result =
      plan(file("distributed_type: FSDP\nnum_processes: 2\nuse_cpu: true\nfsdp_config:\n"
                "  fsdp_version: 2\n  fsdp_sharding_strategy: SHARD_GRAD_OP\n"
                "  fsdp_min_num_params: 100000000.0\n"));

  EXPECT_THAT(result.notices, Contains(HasSubstr("`accel to-fsdp2` converts the file")));
  EXPECT_THAT(result.spec.env, Contains(Pair("FSDP_MIN_NUM_PARAMS", "100000000")));
}

TEST_F(FsdpTest, AFlagThatHasNoEffectIsReadAllTheSame) {
  EXPECT_THAT(refused({"--fsdp_version", "3"}).message(), HasSubstr("--fsdp_version is '3'"));
  EXPECT_THAT(refused({"--megatron_lm_recompute_granularity", "foo"}).message(),
              HasSubstr("expected one of full, selective"));
  (void)plan({"--fsdp_offload_params", "None"});
}

TEST_F(FsdpTest, OnlyOneStrategyIsChosen) {
  for (const char* other : {"--cpu", "--multi_gpu"}) {
    const Error error = refused({"--use_fsdp", other, "--num_processes", "2"});
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << other;
    EXPECT_THAT(error.message(), HasSubstr("You can only use one of `--cpu`, `--multi_gpu`"));
  }
}

TEST_F(FsdpTest, WorkersDoNotShareAGpu) {
  num_gpus_ = 2;

  EXPECT_THAT(refused({"--use_fsdp", "--num_processes", "3"}).message(),
              HasSubstr("3 workers cannot share 2 GPUs"));
  EXPECT_EQ(plan({"--use_fsdp"}).spec.workers.size(), 2u);
}

TEST_F(FsdpTest, ValuesThatDoNotFitAreNamed) {
  const std::pair<Words, const char*> cases[] = {
      {{"--fsdp_version", "3"}, "--fsdp_version is '3', expected one of 1, 2"},
      {{"--fsdp_offload_params", "maybe"}, "expected true or false"},
      {{"--fsdp_min_num_params", "-1"}, "expected a whole number of at least 0"},
      {{"--fsdp_min_num_params", "many"}, "expected a whole number"},
      {{"--fsdp_max_live_bytes", "1.5G"}, "expected a number of bytes, as 1048576, 512M or 2G"},
      {{"--fsdp_state_dict_type", "HALF"}, "expected one of FULL_STATE_DICT, LOCAL_STATE_DICT"},
  };
  for (const auto& [flag, expected] : cases) {
    Words words = {"--use_fsdp", "--num_processes", "2"};
    words.insert(words.end(), flag.begin(), flag.end());
    const Error error = refused(words);
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << expected;
    EXPECT_THAT(error.message(), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace accel::launcher::fsdp_test
