// The rules of DelegatedCgroup in plain folders, where every control file is one that "is not there", and in a machine made of
// files. tests/integration/agent has the real hierarchy.

#include "runtime/supervisor/owner/delegated_cgroup.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_system.h"
#include "tests/support/scratch_folder.h"

namespace accel::supervisor::delegated_cgroup_test {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class DelegatedCgroup : public ::testing::Test {
 protected:
  // A process that is in `folder`, and ends when it is killed.
  void put(pid_t pid, const std::string& folder) {
    system_.add_process(pid, 1, 100);
    system_.files[folder + "/cgroup.procs"] += std::to_string(pid) + "\n";
  }
  void set_populated(bool populated) {
    system_.files[folder_ + "/cgroup.events"] =
        populated ? "populated 1\nfrozen 0\n" : "populated 0\nfrozen 0\n";
  }

  test::FakeSystem system_;
  const test::ScratchFolder base_;
  const std::string folder_ = base_.file("job");
};

TEST_F(DelegatedCgroup, HasASeatForTheShim) {
  ASSERT_TRUE(make_delegated_cgroup(folder_, std::nullopt, {}));

  EXPECT_TRUE(fs::is_directory(folder_ + "/accel-main"));
}

TEST_F(DelegatedCgroup, ALimitThatCannotBeSetIsAnErrorAndNothingIsLeft) {
  const auto made = make_delegated_cgroup(folder_, std::nullopt, {{"pids.max", 40}});

  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(made.error().message(), HasSubstr("pids.max = 40 cannot be set: " + folder_));
  EXPECT_FALSE(fs::exists(folder_));
}

TEST_F(DelegatedCgroup, OneThatIsThereAlreadyIsNotTaken) {
  fs::create_directories(folder_ + "/somebody-elses");

  EXPECT_FALSE(make_delegated_cgroup(folder_, std::nullopt, {}));
  EXPECT_TRUE(fs::exists(folder_ + "/somebody-elses"));
}

TEST_F(DelegatedCgroup, ItsSeatIsTakenWhenThereIsAProcess) {
  EXPECT_FALSE(is_seat_taken(system_, folder_));
  system_.files[folder_ + "/accel-main/cgroup.events"] = "populated 0\n";
  EXPECT_FALSE(is_seat_taken(system_, folder_));
  system_.files[folder_ + "/accel-main/cgroup.events"] = "populated 1\n";
  EXPECT_TRUE(is_seat_taken(system_, folder_));
}

TEST_F(DelegatedCgroup, AnEmptyOneIsRemovedWithWhatIsBelow) {
  fs::create_directories(folder_ + "/accel-job-x/rank-0");
  set_populated(false);

  const auto end = end_cgroup(system_, folder_, 0ms);

  ASSERT_TRUE(end);
  EXPECT_TRUE(end->killed.empty());
  EXPECT_EQ(end->num_left, 0);
  EXPECT_FALSE(fs::exists(folder_));
}

// As a process in an uninterruptible wait does, or one of another pid namespace.
TEST_F(DelegatedCgroup, WhatDoesNotEndIsCountedAsLeft) {
  fs::create_directories(folder_ + "/rank-0");
  set_populated(true);
  put(7, folder_ + "/rank-0");
  put(8, folder_);
  system_.unkillable = {7, 8};

  const auto end = end_cgroup(system_, folder_, 0ms);

  ASSERT_TRUE(end);
  ASSERT_EQ(end->killed.size(), 2U);
  EXPECT_EQ(end->killed[1].command, "work er");
  EXPECT_EQ(end->num_left, 2);
}

TEST_F(DelegatedCgroup, WithoutTheFileThatKillsAllEachIsKilled) {
  fs::create_directories(folder_);
  set_populated(true);
  put(7, folder_);

  const auto end = end_cgroup(system_, folder_, 10ms);

  EXPECT_THAT(system_.signals, ::testing::ElementsAre(std::pair(7, SIGKILL)));
  EXPECT_EQ(end->num_left, 1);  // so the file goes on to say
}

// A hierarchy that is not mounted here proves nothing.
TEST_F(DelegatedCgroup, WhereNoCgroupCanBeSeenNobodyKnows) {
  EXPECT_FALSE(end_cgroup(system_, folder_, 0ms));
  fs::create_directories(folder_);
  EXPECT_FALSE(end_cgroup(system_, folder_, 0ms));
}

}  // namespace
}  // namespace accel::supervisor::delegated_cgroup_test
