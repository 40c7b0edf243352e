// --local-ranks-filter, --redirects and --tee, and numbers as torchrun takes them.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/plan/launch_plan.h"
#include "tests/support/launch_plan_fixture.h"

namespace accel::launcher::output_flags_test {
namespace {

using supervisor::Streams;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TorchrunOutput : public test::LaunchPlanFixture {
 protected:
  TorchrunOutput() { host_.is_torchrun = true; }
};

TEST_F(TorchrunOutput, OtherRanksThanTheListedWriteToFilesAlone) {
  const LaunchPlan result = plan({"--nproc_per_node=3",
                                  "--tee=3",
                                  "--log_dir",
                                  folder_.file("logs"),
                                  "--local_ranks_filter=0,2"});

  EXPECT_EQ(result.spec.workers[0].tee, Streams::kAll);
  EXPECT_EQ(result.spec.workers[1].tee, Streams::kNone);
  EXPECT_EQ(result.spec.workers[1].redirect, Streams::kAll);
  EXPECT_EQ(result.spec.workers[2].redirect, Streams::kNone);
  for (const char* wrong : {"0,,1", "all"}) {
    EXPECT_THAT(refused({"--nproc_per_node=3", "--local_ranks_filter", wrong}).message(),
                HasSubstr("expected local ranks, as in 0,1"));
  }
}

TEST_F(TorchrunOutput, ListedRanksMayBeThoseOfAMachineWithMoreWorkers) {
  const LaunchPlan some = plan({"--nproc_per_node=2", "--local_ranks_filter", " 1, 5"});
  const LaunchPlan none = plan({"--nproc_per_node=2", "--local_ranks_filter=-1"});

  EXPECT_EQ(some.spec.workers[0].redirect, Streams::kAll);
  EXPECT_EQ(some.spec.workers[1].redirect, Streams::kNone);
  EXPECT_THAT(some.notices, IsEmpty());
  EXPECT_EQ(none.spec.workers[1].redirect, Streams::kAll);
  EXPECT_THAT(none.notices, ElementsAre(HasSubstr("names none of the 2 workers here")));
}

TEST_F(TorchrunOutput, StreamsMayBeNamedOfWorkersThatAreNotHere) {
  const LaunchPlan result = plan({"--nproc_per_node=2", "--redirects=0:3,5:1"});

  EXPECT_EQ(result.spec.workers[0].redirect, Streams::kAll);
  EXPECT_EQ(result.spec.workers[1].redirect, Streams::kNone);
}

TEST_F(TorchrunOutput, NumbersMayBeTypedAsPythonReadsThem) {
  const LaunchPlan result = plan({"--nproc_per_node=+2", "--max_restarts= 1_0 ", "--nnodes= 1"});

  EXPECT_EQ(result.spec.workers.size(), 2u);
  EXPECT_EQ(result.spec.restart.max_restarts, 10);
  for (const char* wrong : {"+ 2", "1__0", "_1", "1_", "2 2"})
    EXPECT_THAT(refused({"--nproc_per_node", wrong}).message(), HasSubstr("expected a number"));
}

}  // namespace
}  // namespace accel::launcher::output_flags_test
