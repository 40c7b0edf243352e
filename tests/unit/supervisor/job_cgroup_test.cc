// The rules of JobCgroup in plain folders: a control file is there when a test has made it.
// tests/fault/cgroups_test.cc has the real hierarchy.

#include "runtime/supervisor/spawn/job_cgroup.h"

#include <filesystem>
#include <fstream>
#include <string>

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include "tests/support/fake_system.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::job_cgroup_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class JobCgroupTest : public ::testing::Test {
 protected:
  JobCgroupTest() {
    spec_.job_id = "job-1";
    spec_.workers = {{.local_rank = 0, .argv = {"x"}}, {.local_rank = 1, .argv = {"x"}}};
  }

  Result<JobCgroup> create(bool can_start = true) {
    return JobCgroup::create(
        system_, base_.path(), spec_, can_start ? [](int) { return true; } : [](int) {
          return false;
        });
  }
  std::string rank(int number) const {
    return base_.file("accel-job-job-1/rank-" + std::to_string(number));
  }

  test::FakeSystem system_;
  const test::ScratchFolder base_;
  JobSpec spec_;
};

TEST_F(JobCgroupTest, HasAFolderForEachRankAndTakesThemAlong) {
  {
    const auto cgroup = create();
    ASSERT_TRUE(cgroup.has_value()) << cgroup.error().what();
    EXPECT_THAT(cgroup->folders(), ElementsAre(rank(0), rank(1)));
    EXPECT_TRUE(fs::is_directory(rank(1)));
    EXPECT_GE(cgroup->fd_of(1), 0);
  }
  EXPECT_TRUE(fs::is_empty(base_.path()));
}

TEST_F(JobCgroupTest, JobsOfTheSameNameHaveFoldersOfTheirOwn) {
  spec_.node_id = "n";
  spec_.instance = "aa";
  const auto one = create();
  spec_.instance = "bb";

  const auto other = create();

  ASSERT_TRUE(one.has_value() && other.has_value());
  EXPECT_EQ(one->folders()[0], base_.file("accel-job-job-1@n.aa/rank-0"));
  EXPECT_EQ(other->folders()[0], base_.file("accel-job-job-1@n.bb/rank-0"));
}

TEST_F(JobCgroupTest, LimitWithoutItsControllerIsAnErrorThatNamesTheFile) {
  spec_.limits.memory_bytes = 1 << 20;

  const auto cgroup = create();

  ASSERT_FALSE(cgroup.has_value());
  EXPECT_EQ(cgroup.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(cgroup.error().message(), HasSubstr("memory.max = 1048576"));
  EXPECT_THAT(cgroup.error().message(), HasSubstr(rank(0) + "/memory.max"));
  EXPECT_TRUE(fs::is_empty(base_.path()));
}

// As where the controllers are: the kernel makes the files with the folder, here the test does.
TEST_F(JobCgroupTest, Fault4And12LimitsAreWrittenForEachRank) {
  spec_.limits.memory_bytes = 1 << 20;
  spec_.limits.pids = 20;
  const auto content = [&](int number, const std::string& name) {
    const auto read = real_system().read_file(rank(number) + "/" + name);
    return read ? *read : "none";
  };
  for (int number : {0, 1}) {
    fs::create_directories(rank(number));
    for (const char* name : {"memory.max", "pids.max", "memory.oom.group"})
      std::ofstream(rank(number) + "/" + name).flush();
  }
  const auto cgroup = create();

  ASSERT_TRUE(cgroup.has_value()) << cgroup.error().what();
  for (int number : {0, 1}) {
    EXPECT_EQ(content(number, "memory.max"), "1048576");
    EXPECT_EQ(content(number, "pids.max"), "20");
    EXPECT_EQ(content(number, "memory.oom.group"), "1");
  }
}

TEST_F(JobCgroupTest, Fault4ARankWithAMemoryLimitHasNoSwap) {
  spec_.limits.memory_bytes = 1 << 20;
  for (int number : {0, 1}) {
    fs::create_directories(rank(number));
    for (const char* name : {"memory.max", "memory.swap.max", "memory.oom.group"})
      std::ofstream(rank(number) + "/" + name).flush();
  }

  const auto cgroup = create();

  ASSERT_TRUE(cgroup.has_value()) << cgroup.error().what();
  for (int number : {0, 1}) {
    const auto swap = real_system().read_file(rank(number) + "/memory.swap.max");
    ASSERT_TRUE(swap);
    EXPECT_EQ(*swap, "0");
  }
}

TEST_F(JobCgroupTest, WithoutAMemoryLimitTheSwapIsLeftAsItIs) {
  spec_.limits.pids = 20;
  for (int number : {0, 1}) {
    fs::create_directories(rank(number));
    std::ofstream(rank(number) + "/pids.max").flush();
    std::ofstream(rank(number) + "/memory.swap.max") << "max";
  }

  const auto cgroup = create();

  ASSERT_TRUE(cgroup.has_value()) << cgroup.error().what();
  const auto swap = real_system().read_file(rank(0) + "/memory.swap.max");
  ASSERT_TRUE(swap);
  EXPECT_EQ(*swap, "max");
}

TEST_F(JobCgroupTest, ASwapLimitThatCannotBeSetIsAnErrorThatNamesTheFile) {
  spec_.limits.memory_bytes = 1 << 20;
  for (int number : {0, 1}) {
    fs::create_directories(rank(number));
    fs::create_symlink("elsewhere", rank(number) + "/memory.swap.max");  // is not followed
    std::ofstream(rank(number) + "/memory.max").flush();
  }

  const auto cgroup = create();

  ASSERT_FALSE(cgroup.has_value());
  EXPECT_EQ(cgroup.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(cgroup.error().message(), HasSubstr("memory.swap.max = 0"));
}

TEST_F(JobCgroupTest, WhereNoProcessCanBeStartedIsNone) {
  const auto cgroup = create(/*can_start=*/false);

  ASSERT_FALSE(cgroup.has_value());
  EXPECT_EQ(cgroup.error().code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(fs::is_empty(base_.path()));
}

TEST_F(JobCgroupTest, FoldersOfDeadJobsGoAndThoseOfLivingOnesStay) {
  fs::create_directories(base_.file("accel-job-dead/rank-0"));
  fs::create_directories(base_.file("accel-job-alive/rank-0"));
  fs::create_directories(base_.file("somebody-elses"));
  const UniqueFd alive(::open(base_.file("accel-job-alive").c_str(), O_RDONLY | O_DIRECTORY));
  ASSERT_EQ(::flock(alive.get(), LOCK_EX), 0);

  const auto cgroup = create();

  EXPECT_FALSE(fs::exists(base_.file("accel-job-dead")));
  EXPECT_TRUE(fs::exists(base_.file("accel-job-alive/rank-0")));
  EXPECT_TRUE(fs::exists(base_.file("somebody-elses")));
}

TEST_F(JobCgroupTest, OomKillsOfTheGenerationAndOfTheRankAreCounted) {
  system_.files[rank(0) + "/memory.events"] = "low 0\noom 3\noom_kill 3\noom_group_kill 1\n";
  system_.files[rank(1) + "/memory.events"] = "low 0\noom 0\noom_kill 0\n";
  auto cgroup = create();
  ASSERT_TRUE(cgroup.has_value());

  cgroup->begin_generation();
  EXPECT_EQ(cgroup->ran_out_of_memory(0), false);
  system_.files[rank(0) + "/memory.events"] = "low 0\noom 4\noom_kill 5\noom_group_kill 2\n";

  EXPECT_EQ(cgroup->ran_out_of_memory(0), true);
  EXPECT_EQ(cgroup->ran_out_of_memory(1), false);
}

TEST_F(JobCgroupTest, WithoutAMemoryControllerItDoesNotKnow) {
  auto cgroup = create();
  ASSERT_TRUE(cgroup.has_value());
  cgroup->begin_generation();

  EXPECT_EQ(cgroup->ran_out_of_memory(0), std::nullopt);
}

}  // namespace
}  // namespace accel::supervisor::job_cgroup_test
