#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::launch_plan_files_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

using LaunchPlanFiles = test::LaunchLineFixture;

TEST_F(LaunchPlanFiles, FlagBeatsFileBeatsDefault) {
  const std::string config = folder_.write("c.yaml",
                                           "distributed_type: 'NO'\n"
                                           "num_processes: 3\n"
                                           "mixed_precision: bf16\n"
                                           "enable_cpu_affinity: yes\n"
                                           "use_cpu: true\n"
                                           "debug: true\n"
                                           "main_process_port: 4000\n"
                                           "dynamo_config:\n"
                                           "  dynamo_backend: INDUCTOR\n"
                                           "  use_dynamic: on\n");

  const LaunchPlan from_file = plan({"--config_file", config, program_});
  const LaunchPlan from_flags = plan({"--config_file",
                                      config,
                                      "--num_processes",
                                      "2",
                                      "--mixed_precision",
                                      "no",
                                      "--dynamo_backend",
                                      "eager",
                                      program_});

  EXPECT_EQ(from_file.spec.workers.size(), 3u);
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_MIXED_PRECISION"), "bf16");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_CPU_AFFINITY"), "1");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DEBUG_MODE"), "true");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_USE_CPU"), "True");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DYNAMO_BACKEND"), "INDUCTOR");
  EXPECT_EQ(from_file.spec.env.at("ACCELERATE_DYNAMO_USE_DYNAMIC"), "True");
  EXPECT_EQ(from_file.spec.store.port, 4000);
  EXPECT_EQ(from_flags.spec.workers.size(), 2u);
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_MIXED_PRECISION"), "no");
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_DYNAMO_BACKEND"), "EAGER");
  EXPECT_EQ(from_flags.spec.env.at("ACCELERATE_DEBUG_MODE"), "true");
}

TEST_F(LaunchPlanFiles, TheDefaultFileIsReadUnlessCpuIsGiven) {
  folder_.write("home/.cache/huggingface/accelerate/default_config.yaml",
                "distributed_type: 'NO'\nnum_processes: 4\n");

  EXPECT_EQ(plan({program_}).spec.workers.size(), 4u);
  EXPECT_EQ(plan({"--cpu", program_}).spec.workers.size(), 1u);

  folder_.write("hf/accelerate/default_config.yaml", "distributed_type: 'NO'\nnum_processes: 2\n");
  host_.environment["HF_HOME"] = folder_.file("hf");
  EXPECT_EQ(plan({program_}).spec.workers.size(), 2u);
}

TEST_F(LaunchPlanFiles, TheFixturesOfThePeerLaunch) {
  const char* folder = std::getenv("ACCEL_SOURCE_DIR");
  ASSERT_NE(folder, nullptr) << "ctest sets ACCEL_SOURCE_DIR";
  for (const char* name :
       {"0_11_0.yaml", "0_12_0.yaml", "latest.yaml", "validate_launch_cmd.yaml"}) {
    const std::string path = std::string(folder) + "/tests/unit/launcher/configs/" + name;
    const LaunchPlan result = plan({"--config_file", path, program_});
    EXPECT_EQ(result.spec.workers.size(), 1u) << name;
    EXPECT_THAT(result.notices, IsEmpty()) << name;
  }
}

// The options of libaccel's sharding, as its workers find them.
class FsdpFileTest : public LaunchPlanFiles {
 protected:
  std::string file(const std::string& fsdp_keys, const std::string& use_cpu = "true") {
    return folder_.write("fsdp.yaml",
                         "distributed_type: FSDP\nnum_processes: 2\nuse_cpu: " + use_cpu +
                             "\nfsdp_config:\n" + fsdp_keys);
  }
};

TEST_F(FsdpFileTest, TheExamplesLaunchWithoutANotice) {
  const std::string folder = std::getenv("ACCEL_SOURCE_DIR");
  const LaunchPlan one = plan({"--config_file", folder + "/configs/fsdp1.yaml", program_});
  const LaunchPlan two = plan({"--config_file", folder + "/configs/fsdp2.yaml", program_});

  EXPECT_THAT(one.notices, IsEmpty());
  EXPECT_THAT(two.notices, IsEmpty());
  EXPECT_THAT(one.spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_FSDP", "true")),
                    Contains(Pair("FSDP_VERSION", "1")),
                    Contains(Pair("FSDP_SHARDING_STRATEGY", "FULL_SHARD")),
                    Contains(Pair("FSDP_AUTO_WRAP_POLICY", "TRANSFORMER_BASED_WRAP")),
                    Contains(Pair("FSDP_TRANSFORMER_CLS_TO_WRAP", "GptBlock")),
                    Contains(Pair("FSDP_OFFLOAD_PARAMS", "false")),
                    Not(Contains(Key("FSDP_IGNORED_MODULES")))));
  EXPECT_THAT(two.spec.env,
              AllOf(Contains(Pair("FSDP_VERSION", "2")),
                    Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "true")),
                    Contains(Pair("FSDP_MIN_NUM_PARAMS", "100000")),
                    Contains(Pair("ACCELERATE_MIXED_PRECISION", "bf16"))));
}

TEST_F(FsdpFileTest, PrefixesAreOptionalAndAStrategyMayStandUnderTheKeyOfVersion2) {
  const LaunchPlan result = plan({"--config_file",
                                  file("  reshard_after_forward: shard_grad_op\n"
                                       "  fsdp_sync_module_states: no\n"
                                       "  cpu_ram_efficient_loading: no\n"),
                                  program_});
  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("FSDP_SHARDING_STRATEGY", "SHARD_GRAD_OP")),
                    Contains(Pair("FSDP_SYNC_MODULE_STATES", "false")),
                    Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "shard_grad_op"))));
  const LaunchPlan other =
      plan({"--config_file", file("  fsdp_reshard_after_forward: no\n"), program_});
  EXPECT_THAT(other.spec.env, Contains(Pair("FSDP_RESHARD_AFTER_FORWARD", "false")));
}

TEST_F(FsdpFileTest, WrongValuesAreNamedWithTheirLinesAllAtOnce) {
  const Error error = refused({"--config_file",
                               file("  fsdp_sharding_strategy: EVERYTHING\n"
                                    "  fsdp_min_num_params: many\n"
                                    "  fsdp_version: 3\n"),
                               program_});
  EXPECT_EQ(error.code(), ErrorCode::kConfigInvalidValue);
  EXPECT_THAT(error.render(),
              AllOf(HasSubstr("fsdp.yaml:5: fsdp_config.sharding_strategy is 'EVERYTHING'"),
                    HasSubstr("fsdp.yaml:6: fsdp_config.min_num_params is 'many'"),
                    HasSubstr("fsdp.yaml:7: fsdp_config.version is '3', expected one of 1, 2")));
}

TEST_F(FsdpFileTest, AnUnknownKeyIsNoticed) {
  const LaunchPlan result = plan({"--config_file", file("  fsdp_shards: 2\n"), program_});
  EXPECT_THAT(result.notices, Contains(HasSubstr("fsdp.yaml:5: fsdp_config has no key shards")));
}

TEST_F(LaunchPlanFiles, AGivenFlagBeatsTheFixtureAndTheRestHolds) {
  const std::string path = std::string(std::getenv("ACCEL_SOURCE_DIR")) +
                           "/tests/unit/launcher/configs/validate_launch_cmd.yaml";

  const LaunchPlan result = plan({"--num-processes", "2", "--config-file", path, program_});

  EXPECT_EQ(result.spec.workers.size(), 2u);  // the file says 1
  EXPECT_TRUE(result.debug);
}

TEST_F(LaunchPlanFiles, AConfigurationWithoutANumberAsksForIt) {
  const std::string config = folder_.write("c.yaml", "distributed_type: MULTI_CPU\n");

  EXPECT_THAT(refused({"--config_file", config, program_}).message(),
              HasSubstr("You need to manually pass in `--num_processes` using this config yaml."));
  EXPECT_EQ(plan({"--config_file", config, "--num_processes", "2", program_}).spec.workers.size(),
            2u);
}

}  // namespace
}  // namespace accel::launcher::launch_plan_files_test
