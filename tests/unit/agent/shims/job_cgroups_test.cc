// Which folders an agent takes for its own, in plain folders. tests/integration/agent has the real hierarchy.

#include "agent/shims/job_cgroups.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::agent::job_cgroups_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class JobCgroupsTest : public testing::Test {
 protected:
  JobCgroups of_agent(const std::string& state, int max_pids = 0) {
    fs::create_directories(folder_.file(state));
    return JobCgroups(base_.path().string(), folder_.file(state), max_pids);
  }

  const test::ScratchFolder folder_;
  const test::ScratchFolder base_;
};

TEST_F(JobCgroupsTest, AJobHasOneThatIsFoundByItsId) {
  JobCgroups cgroups = of_agent("state");

  const auto made = cgroups.make("job.a", std::nullopt);

  ASSERT_TRUE(made);
  EXPECT_THAT(*made, StartsWith(base_.file("accel-agent-")));
  EXPECT_EQ(cgroups.find("job.a"), *made);
  EXPECT_EQ(cgroups.find("job"), "");
  EXPECT_EQ(of_agent("state").find("job.a"), *made);
}

TEST_F(JobCgroupsTest, AgentsBesideEachOtherLeaveTheirJobsAlone) {
  const auto made = of_agent("one").make("job", std::nullopt);
  ASSERT_TRUE(made);

  EXPECT_EQ(of_agent("other").find("job"), "");
  EXPECT_EQ(of_agent("other").remove_others(), 0);
}

TEST_F(JobCgroupsTest, WhatIsKeptIsNotAmongTheOthers) {
  JobCgroups cgroups = of_agent("state");
  const auto goes_on = cgroups.make("goes-on", std::nullopt);
  const auto gone = cgroups.make("gone", std::nullopt);
  ASSERT_TRUE(goes_on && gone);
  cgroups.keep(*goes_on);

  EXPECT_EQ(cgroups.remove_others(), 1);
}

TEST_F(JobCgroupsTest, WhereNoneCanBeMadeThereIsNone) {
  JobCgroups none("", folder_.path(), 0);

  EXPECT_FALSE(none.are_there());
  EXPECT_EQ(none.make("job", std::nullopt).value(), "");
  EXPECT_EQ(none.find("job"), "");
}

TEST_F(JobCgroupsTest, ALimitThatCannotHoldIsAnErrorWithARemedy) {
  const auto nowhere = JobCgroups("", folder_.path(), 40).make("job", std::nullopt);
  const auto without_controller = of_agent("state", 40).make("job", std::nullopt);

  ASSERT_FALSE(nowhere);
  EXPECT_EQ(nowhere.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(nowhere.error().message(), HasSubstr("job_pids is 40, and there is no cgroup"));
  ASSERT_FALSE(without_controller);
  EXPECT_THAT(without_controller.error().message(), HasSubstr("pids.max = 40 cannot be set"));
  EXPECT_THAT(without_controller.error().remedy(), HasSubstr("job_pids"));
}

}  // namespace
}  // namespace accel::agent::job_cgroups_test
