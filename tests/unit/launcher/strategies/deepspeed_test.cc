// --use_deepspeed: what the workers are told, and what is refused. Values against the peer's: tests/peer/launch_options.py.

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::deepspeed_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

class DeepSpeedTest : public test::LaunchPlanFixture {};

TEST_F(DeepSpeedTest, ThePathsThatThePeerLosesAreHandedOn) {
  const LaunchPlan result = plan({"--use_deepspeed",
                                  "--num_processes",
                                  "2",
                                  "--zero_stage",
                                  "3",
                                  "--offload_optimizer_device",
                                  "nvme",
                                  "--offload-optimizer-nvme-path",
                                  "/nvme/a",
                                  "--offload_param_nvme_path",
                                  "/nvme/b"});

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("ACCELERATE_USE_DEEPSPEED", "true")),
                    Contains(Pair("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3")),
                    Contains(Pair("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "nvme")),
                    Contains(Pair("ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "/nvme/a")),
                    Contains(Pair("ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "/nvme/b")),
                    Contains(Pair("ACCELERATE_CONFIG_DS_FIELDS", ""))));
  EXPECT_EQ(result.spec.workers.size(), 2u);
}

TEST_F(DeepSpeedTest, WorkersGetTheFolderOfTheLaunchAndNoCompiler) {
  const LaunchPlan result = plan({"--use_deepspeed", "--num_processes", "1"});

  EXPECT_THAT(result.spec.env,
              AllOf(Contains(Pair("PYTHONPATH", std::filesystem::current_path().string())),
                    Not(Contains(Key("ACCELERATE_DYNAMO_BACKEND"))),
                    Not(Contains(Key("ACCELERATE_USE_CPU")))));
  EXPECT_EQ(result.spec.env_mode, EnvMode::kDistributed);
}

// The test's own folder again when it ends.
class CurrentFolder {
 public:
  explicit CurrentFolder(const std::filesystem::path& folder) {
    std::filesystem::current_path(folder);
  }
  ~CurrentFolder() { std::filesystem::current_path(before_); }
  CurrentFolder(const CurrentFolder&) = delete;
  CurrentFolder& operator=(const CurrentFolder&) = delete;

 private:
  std::filesystem::path before_ = std::filesystem::current_path();
};

TEST_F(DeepSpeedTest, AFolderThatIsGoneIsNoPlaceOfModules) {
  std::filesystem::create_directory(folder_.path() / "gone");
  const CurrentFolder gone(folder_.path() / "gone");
  std::filesystem::remove(folder_.path() / "gone");
  const Words words = {"--use_deepspeed", "--num_processes", "1", "--log_dir", "logs"};

  EXPECT_THAT(plan(words).spec.env, Not(Contains(Key("PYTHONPATH"))));
  host_.environment["PYTHONPATH"] = "/modules";
  EXPECT_THAT(plan(words).spec.env, Contains(Pair("PYTHONPATH", "/modules")));
}

TEST_F(DeepSpeedTest, TheFieldsOfAFileAreNamedInItsOrder) {
  const Words words = file(
      "distributed_type: DEEPSPEED\nnum_processes: 1\nmixed_precision: bf16\n"
      "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: auto\n  zero3_init_flag: "
      "no\n");

  EXPECT_THAT(plan(words).spec.env,
              AllOf(Contains(Pair("ACCELERATE_CONFIG_DS_FIELDS",
                                  "zero_stage,gradient_accumulation_steps,zero3_init_flag,"
                                  "mixed_precision")),
                    Contains(Pair("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "auto")),
                    Contains(Pair("ACCELERATE_DEEPSPEED_ZERO3_INIT", "false"))));
}

TEST_F(DeepSpeedTest, CpuLeavesTheFilesDeepSpeedOut) {
  Words words = file("distributed_type: DEEPSPEED\nnum_processes: 2\n");
  words.emplace_back("--cpu");

  EXPECT_THAT(plan(words).spec.env, Not(Contains(Key("ACCELERATE_USE_DEEPSPEED"))));
}

TEST_F(DeepSpeedTest, ItsJsonFileIsLookedAtBeforeWorkersStart) {
  const std::string good = folder_.write("ds.json", R"({"train_batch_size": "auto"})");
  const std::string broken = folder_.write("broken.json", "{\"a\": 1,\n oops}");
  const auto words = [](const std::string& path) {
    return Words{"--use_deepspeed", "--num_processes", "1", "--deepspeed_config_file", path};
  };

  EXPECT_THAT(plan(words(good)).spec.env, Contains(Pair("ACCELERATE_DEEPSPEED_CONFIG_FILE", good)));
  EXPECT_EQ(refused(words(folder_.file("none.json"))).code(), ErrorCode::kConfigUnreadable);
  const Error error = refused(words(broken));
  EXPECT_EQ(error.code(), ErrorCode::kConfigSyntax);
  EXPECT_THAT(error.message(), HasSubstr("broken.json:2"));
}

TEST_F(DeepSpeedTest, JsonItselfAndInBase64IsNoPath) {
  const auto words = [](const std::string& json) {
    return Words{"--use_deepspeed", "--num_processes", "1", "--deepspeed_config_file", json};
  };

  for (const char* json : {"eyJhIjogMX0=", "ewogICJhIjogIj8_PiIKfQ==", R"({"a": 1})"}) {
    EXPECT_THAT(plan(words(json)).spec.env,
                Contains(Pair("ACCELERATE_DEEPSPEED_CONFIG_FILE", json)));
  }
  const Error broken = refused(words("{\"a\": oops}"));
  EXPECT_EQ(broken.code(), ErrorCode::kConfigSyntax);
  EXPECT_THAT(broken.message(), HasSubstr("the JSON of --deepspeed_config_file:1"));
}

TEST_F(DeepSpeedTest, NvmeNeedsAFolder) {
  const Error error =
      refused({"--use_deepspeed", "--num_processes", "1", "--offload_param_device", "nvme"});

  EXPECT_EQ(error.code(), ErrorCode::kUsage);
  EXPECT_THAT(error.remedy(), HasSubstr("--offload_param_nvme_path"));
}

TEST_F(DeepSpeedTest, FlagsWithoutItAreAcceptedAsThePeerDoes) {
  EXPECT_THAT(plan({"--cpu", "--deepspeed_config_file", "path/to/be/accepted"}).spec.env,
              Not(Contains(Key("ACCELERATE_DEEPSPEED_CONFIG_FILE"))));
}

TEST_F(DeepSpeedTest, ValuesThatDoNotFitAreNamed) {
  const std::pair<Words, const char*> cases[] = {
      {{"--zero_stage", "4"}, "--zero_stage is '4', expected one of 0, 1, 2, 3"},
      {{"--gradient_accumulation_steps", "0"}, "a whole number of at least 1, or auto"},
      {{"--gradient_clipping", "-1"}, "a number of at least 0, or auto, none"},
      {{"--offload_param_device", "disk"}, "one of none, cpu, nvme"},
  };
  for (const auto& [flag, expected] : cases) {
    Words words = {"--use_deepspeed", "--num_processes", "1"};
    words.insert(words.end(), flag.begin(), flag.end());
    EXPECT_THAT(refused(words).message(), HasSubstr(expected));
  }
}

}  // namespace
}  // namespace accel::launcher::deepspeed_test
