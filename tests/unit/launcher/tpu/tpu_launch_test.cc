#include "launcher/start/tpu/tpu_launch.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::tpu_launch_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

TEST(TpuLaunch, BfloatIsToldToXla) {
  EXPECT_THAT(tpu_variables({}, "bf16"), ElementsAre(Pair("XLA_USE_BF16", "1")));
  EXPECT_THAT(tpu_variables({.downcast_bf16 = true}, "bf16"),
              ElementsAre(Pair("XLA_DOWNCAST_BF16", "1")));
  EXPECT_THAT(tpu_variables({.downcast_bf16 = true}, "no"), IsEmpty());
}

class TpuPlan : public test::LaunchPlanFixture {
 protected:
  LaunchPlan of(Words words) {
    words.insert(words.end(), {script_, "--epochs", "3"});
    return or_throw(resolve_launch(words, host_));
  }
};

TEST_F(TpuPlan, OneProcessGivesTheFunctionToTorchXla) {
  const LaunchPlan plan =
      of({"--tpu", "--main_training_function", "train", "--mixed_precision", "bf16"});

  ASSERT_EQ(plan.spec.workers.size(), 1U);
  EXPECT_EQ(plan.spec.env_mode, EnvMode::kSimple);
  const std::vector<std::string>& argv = plan.spec.workers[0].argv;
  ASSERT_EQ(argv.size(), 9U);
  EXPECT_EQ(argv[0], python_);
  EXPECT_EQ(argv[2], "-c");
  EXPECT_THAT(argv[3], HasSubstr("xmp.spawn"));
  EXPECT_THAT(std::vector<std::string>(argv.begin() + 4, argv.end()),
              ElementsAre("file", script_, "train", "--epochs", "3"));
  EXPECT_THAT(plan.spec.env, Contains(Pair("XLA_USE_BF16", "1")));
}

TEST_F(TpuPlan, AFileSaysItToo) {
  Words words = file(
      "distributed_type: XLA\nnum_processes: 8\nnum_machines: 1\nmain_training_function: run\n"
      "downcast_bf16: 'yes'\nmixed_precision: bf16\n");
  const LaunchPlan plan = of(words);

  ASSERT_EQ(plan.spec.workers.size(), 1U);
  EXPECT_THAT(plan.spec.workers[0].argv, Contains("run"));
  EXPECT_THAT(plan.spec.env, Contains(Pair("XLA_DOWNCAST_BF16", "1")));

  words.push_back("--cpu");
  EXPECT_THAT(of(words).spec.env, Not(Contains(Key("XLA_DOWNCAST_BF16"))));
}

TEST_F(TpuPlan, ModulesGoByTheirNameAndProgramsNotAtAll) {
  const LaunchPlan plan = or_throw(resolve_launch({"--tpu", "-m", "pkg.train", "x"}, host_));
  const std::vector<std::string>& argv = plan.spec.workers[0].argv;
  EXPECT_THAT(std::vector<std::string>(argv.begin() + 4, argv.end()),
              ElementsAre("module", "pkg.train", "main", "x"));

  EXPECT_THAT(refused({"--tpu"}).message(), HasSubstr("digits is none"));
  EXPECT_THAT(refused({"--tpu", "--use_fsdp"}).message(), HasSubstr("You can only use one of"));
}

// What xla_dist is told to run, after its own flags.
std::vector<std::string> machine_words(const LaunchPlan& plan) {
  const auto& argv = plan.spec.workers.at(0).argv;
  return {std::find(argv.begin(), argv.end(), "--") + 1, argv.end()};
}

TEST_F(TpuPlan, APodIsReachedThroughXlaDist) {
  host_.program_folder = "/opt/bin";
  const LaunchPlan plan = or_throw(resolve_launch({"--tpu",
                                                   "--tpu_cluster",
                                                   "--tpu_name",
                                                   "pod-1",
                                                   "--vm",
                                                   "a",
                                                   "--vm",
                                                   "b",
                                                   "--env",
                                                   "KEY=$x",
                                                   "--tpu_use_sudo",
                                                   "--mixed_precision",
                                                   "bf16",
                                                   "/there/train.py",
                                                   "--text",
                                                   "it's \"5\" $HOME"},
                                                  host_));

  const auto& argv = plan.spec.workers.at(0).argv;
  EXPECT_EQ(Words(argv.begin(), argv.end() - 16),
            (Words{python_,
                   "-u",
                   "-m",
                   "torch_xla.distributed.xla_dist",
                   "--tpu",
                   "pod-1",
                   "--vm",
                   "a",
                   "--vm",
                   "b",
                   "--env",
                   "XLA_USE_BF16=1",
                   "--env",
                   "ACCELERATE_IN_TPU_POD=1",
                   "--env",
                   "KEY=\\$x",
                   "--restart-tpuvm-pod-server"}));
  EXPECT_THAT(machine_words(plan),
              ElementsAre("sudo",
                          "/opt/bin/accel-launch",
                          "--tpu",
                          "--no_tpu_cluster",
                          "--num_machines",
                          "1",
                          "--mixed_precision",
                          "bf16",
                          "--dynamo_backend",
                          "no",
                          "--main_training_function",
                          "main",
                          "/there/train.py",
                          "--text",
                          "it's \\\"5\\\" \\$HOME"));
  EXPECT_TRUE(plan.spec.workers[0].is_starter);
  EXPECT_THAT(plan.worker_names, ElementsAre("xla_dist"));
}

TEST_F(TpuPlan, AFileNamesThePod) {
  Words words = file(
      "distributed_type: XLA\nnum_processes: 8\nnum_machines: 1\nmain_training_function: run\n"
      "tpu_use_cluster: true\ntpu_name: pod-2\ntpu_use_sudo: true\ntpu_vm: ['']\ntpu_env:\n- "
      "A=1\n");
  const LaunchPlan plan = of(words);

  EXPECT_THAT(machine_words(plan), IsSupersetOf({"sudo", "--num_processes", "8", "run"}));
  EXPECT_THAT(plan.spec.workers[0].argv, IsSupersetOf({"pod-2", "A=1"}));
  EXPECT_THAT(plan.spec.workers[0].argv, Not(Contains("--vm")));

  words.emplace_back("--no_tpu_cluster");
  EXPECT_THAT(of(words).spec.workers[0].argv, Not(Contains("pod-2")));
}

TEST_F(TpuPlan, DashesOfTheScriptReachItThroughTheLauncherOfAMachine) {
  const LaunchPlan plan = or_throw(resolve_launch(
      {"--tpu", "--tpu_cluster", "--tpu_name", "p", script_, "--", "--", "x"}, host_));

  const std::vector<std::string> words = machine_words(plan);
  EXPECT_EQ(Words(words.end() - 4, words.end()), (Words{script_, "--", "--", "x"}));
}

TEST_F(TpuPlan, APodThatCannotBeReachedIsRefused) {
  EXPECT_THAT(refused({"--tpu", "--tpu_cluster"}).remedy(), HasSubstr("--tpu_name"));
  EXPECT_THAT(refused({"--tpu", "--tpu_cluster", "--tpu_name", "p", "--env", "x"}).message(),
              HasSubstr("--env is 'x'"));
  EXPECT_EQ(refused({"--tpu", "--tpu_cluster", "--tpu_name", "p", "--no_python"}).code(),
            ErrorCode::kUsage);
}

}  // namespace
}  // namespace accel::launcher::tpu_launch_test
