#include "launcher/tpu/tpu_launch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

TEST_F(TpuPlan, PodsAreRefusedWithTheWayToTake) {
  const Error error = refused({"--tpu", "--tpu_cluster"});

  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.remedy(), HasSubstr("accel tpu-config"));
}

}  // namespace
}  // namespace accel::launcher
