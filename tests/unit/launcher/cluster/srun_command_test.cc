#include "launcher/cluster/slurm/srun_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::cluster::srun_command_test {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Key;
using ::testing::Not;
using ::testing::Pair;

std::vector<std::string> last(std::vector<std::string> words, std::size_t count) {
  return {words.end() - static_cast<std::ptrdiff_t>(count), words.end()};
}

TEST(SrunCommand, StartsOneLauncherOnEachNodeAndLeavesTheDecisionsToUs) {
  const auto words = srun_command({"/bin/accel-launch", "train"}, 4, "");
  EXPECT_EQ(words.front(), "srun");
  EXPECT_THAT(words, Contains("--nodes=4"));
  EXPECT_THAT(words, Contains("--ntasks-per-node=1"));
  EXPECT_THAT(words, Contains("--kill-on-bad-exit=0"));
  EXPECT_THAT(words, Contains("--no-kill"));
  EXPECT_THAT(words, Contains("--overlap"));
  EXPECT_THAT(last(words, 2), ElementsAre("/bin/accel-launch", "train"));
}

TEST(SrunCommand, OneNodeIsNamedAndNotWaitedForWhenItIsDown) {
  const auto words = srun_command({"/bin/accel-launch"}, 4, "n3");
  EXPECT_THAT(words, Contains("--nodes=1"));
  EXPECT_THAT(words, Contains("--nodelist=n3"));
  EXPECT_THAT(words, Contains("--immediate=20"));
}

TEST(SrunCommand, TheShapeOfTheBatchJobDoesNotShapeTheStep) {
  const EnvMap env = srun_environment(
      {{"SLURM_JOB_ID", "7"}, {"SLURM_NTASKS", "32"}, {"SLURM_CPUS_PER_TASK", "1"}, {"HOME", "/u"}},
      "/u/.accel-slurm-7");
  EXPECT_THAT(env, Contains(Pair("SLURM_JOB_ID", "7")));
  EXPECT_THAT(env, Contains(Pair("HOME", "/u")));
  EXPECT_THAT(env, Contains(Pair("ACCEL_SLURM_FOLDER", "/u/.accel-slurm-7")));
  EXPECT_THAT(env, Not(Contains(Key("SLURM_NTASKS"))));
  EXPECT_THAT(env, Not(Contains(Key("SLURM_CPUS_PER_TASK"))));
}

}  // namespace
}  // namespace accel::cluster::srun_command_test
