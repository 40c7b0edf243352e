#include "launcher/cluster/agents/run_request.h"

#include <cstdlib>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/scratch_folder.h"

namespace accel::cluster::run_request_test {
namespace {

using ::testing::HasSubstr;

class RunRequest : public ::testing::Test {
 protected:
  RunRequest() {
    ::setenv("ACCEL_JOB_TOKEN", "open-sesame-0123456789", 1);
    ::setenv("ACCEL_JOB_TOKEN_FILE", "/etc/accel/token", 1);
    ::setenv("RUN_REQUEST", "here", 1);
  }
  ~RunRequest() override {
    for (const char* name : {"ACCEL_JOB_TOKEN", "ACCEL_JOB_TOKEN_FILE", "RUN_REQUEST"})
      ::unsetenv(name);
  }
};

TEST_F(RunRequest, TheAgentGetsThisEnvironmentWithoutTheTokenOfTheJob) {
  const auto job = requested_job({.command = {"train"}});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->env().at("RUN_REQUEST"), "here");
  EXPECT_EQ(job->env().at("ACCEL_JOB_TOKEN_FILE"), "/etc/accel/token");
  EXPECT_FALSE(job->env().contains("ACCEL_JOB_TOKEN"));
  EXPECT_EQ(job->DebugString().find("open-sesame"), std::string::npos);
}

TEST_F(RunRequest, AFlagBeatsTheEnvironment) {
  const auto job = requested_job({.command = {"train"}, .env = {"RUN_REQUEST=there", "EMPTY"}});
  ASSERT_TRUE(job);
  EXPECT_EQ(job->env().at("RUN_REQUEST"), "there");
  EXPECT_EQ(job->env().at("EMPTY"), "");
}

TEST_F(RunRequest, NumProcessesCountsThoseOfAllNodes) {
  const auto total = requested_job({.command = {"train"}, .nodes = "2", .num_processes = 8});
  const auto each = requested_job({.command = {"train"}, .nodes = "2:4", .nproc_per_node = 8});
  ASSERT_TRUE(total && each);
  EXPECT_EQ(total->procs_per_node(), 4U);
  EXPECT_EQ(each->procs_per_node(), 8U);
}

TEST_F(RunRequest, RefusesATotalThatCannotBeMeant) {
  const auto open = requested_job({.command = {"train"}, .nodes = "2:4", .num_processes = 8});
  const auto odd = requested_job({.command = {"train"}, .nodes = "2", .num_processes = 3});
  const auto both = requested_job({.command = {"train"}, .num_processes = 3, .nproc_per_node = 3});
  ASSERT_FALSE(open || odd || both);
  EXPECT_THAT(open.error().message(), HasSubstr("2:4 leaves open how many nodes there are"));
  EXPECT_THAT(open.error().remedy(), HasSubstr("--nproc_per_node N"));
  EXPECT_THAT(odd.error().message(), HasSubstr("does not divide by the 2 nodes"));
  EXPECT_THAT(both.error().message(), HasSubstr("--nproc_per_node those of each"));
}

TEST_F(RunRequest, ATotalNamesTheFileThatLeavesItsNodesOpen) {
  const test::ScratchFolder folder;
  const std::string spec = folder.write("job.json", R"({"min_nodes": 2, "max_nodes": 4})");
  const auto open = requested_job({.command = {"train"}, .spec = spec, .num_processes = 8});
  ASSERT_FALSE(open);
  EXPECT_THAT(open.error().message(), HasSubstr("job.json leaves open how many nodes there are"));
}

}  // namespace
}  // namespace accel::cluster::run_request_test
