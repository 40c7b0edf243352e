// Jobs in cgroups of version 2 (faults 4, 10, 12 and 27 of docs/reference/faults.md). Where the machine has no such
// hierarchy, root mounts one for this test in a mount namespace of its own.

#include <csignal>
#include <filesystem>
#include <fstream>
#include <optional>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include "runtime/supervisor/spawn/job_cgroup.h"
#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::cgroups_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr const char* kNoControllers =
    "the controllers memory and pids cannot be had: see JobCgroupTest.Fault4And12LimitsAreWritten";
constexpr std::size_t kFamily = 5;  // the worker and its four relatives

class Cgroups : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = supervisor::find_cgroup_base(real_system());
    if (base_.empty()) base_ = mount_hierarchy();
    if (base_.empty()) GTEST_SKIP() << "no writable cgroup2 here, and none can be mounted";
  }

  void TearDown() override {
    if (mount_point_) ::umount2(mount_point_->path().c_str(), MNT_DETACH);
  }

  std::vector<std::string> launch_arguments(const std::string& mode) const {
    std::vector<std::string> arguments = {"--num_processes", "2", "--no_python"};
    const auto command = worker_command(mode, token_);
    arguments.insert(arguments.end(), command.begin(), command.end());
    return arguments;
  }

  // The job folders that have this test's worker in their name.
  std::vector<std::string> folders() const {
    std::vector<std::string> found;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(base_, ignored)) {
      const std::string name = entry.path().filename();
      const bool is_ours = name.find(token_) != std::string::npos || name.starts_with(launched());
      if (name.starts_with("accel-job-") && is_ours) found.push_back(name);
    }
    return found;
  }

  // It is not enough that they are here: a folder with processes of its own hands none down.
  bool has_controllers() const {
    const std::string path = base_ + "/cgroup.subtree_control";
    for (const char* controller : {"+memory", "+pids"}) std::ofstream(path) << controller;
    const auto handed_down = real_system().read_file(path);
    return handed_down && handed_down->find("memory") != std::string::npos &&
           handed_down->find("pids") != std::string::npos;
  }

  void note_pid(pid_t launcher) { launcher_ = launcher; }

  const std::string token_ = unique_token();
  std::string base_;

 private:
  // The job id of accel-launch: program, its pid, a time.
  std::string launched() const {
    return launcher_ == 0 ? "\n" : "accel-job-fault_worker-" + std::to_string(launcher_) + "-";
  }

  std::string mount_hierarchy() {
    if (::unshare(CLONE_NEWNS) != 0) return {};
    ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr);
    mount_point_.emplace();
    if (::mount("none", mount_point_->path().c_str(), "cgroup2", 0, nullptr) != 0) {
      mount_point_.reset();
      return {};
    }
    return supervisor::find_cgroup_base(real_system());
  }

  std::optional<ScratchFolder> mount_point_;
  pid_t launcher_ = 0;
};

TEST_F(Cgroups, EveryRankIsBornInItsOwnAndNothingIsLeft) {
  auto spec = make_job("exit 0", token_, 2);
  for (auto& worker : spec.workers) {
    worker.argv = {"/bin/sh",
                   "-c",
                   "exec 3</proc/self/cgroup; while read -r line <&3; do "
                   "case $line in 0::*) echo \"$line\" >&2;; esac; done; exit 3"};
  }
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value()) << (run.error ? run.error->what() : "no outcome in time");
  const auto& failure = *run.outcome->first_failure;
  EXPECT_THAT(failure.tail,
              AllOf(HasSubstr("/accel-job-" + token_ + "."),
                    HasSubstr("/rank-" + std::to_string(failure.local_rank))));
  EXPECT_THAT(folders(), IsEmpty());
}

TEST_F(Cgroups, Fault27KillingTheLauncherLeavesNoCgroup) {
  LaunchProcess launch(launch_arguments("family"), token_);
  note_pid(launch.pid());
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));
  EXPECT_THAT(folders(), SizeIs(1));

  launch.signal(SIGKILL);

  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return folders().empty(); }));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Cgroups, Fault27KillingTheShimLeavesNoCgroup) {
  LaunchProcess launch(launch_arguments("family"), token_);
  note_pid(launch.pid());
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));

  ::kill(launch.shim(), SIGKILL);

  EXPECT_EQ(launch.wait(), error_info(ErrorCode::kShimLost).exit_status);
  EXPECT_THAT(processes_with(token_), IsEmpty());
  EXPECT_THAT(folders(), IsEmpty());
}

// Nobody is left to look for those that got away: the next job beside them does.
TEST_F(Cgroups, Fault27WhatIsLeftOfTwoKilledAtOnceEndsWithTheNextStart) {
  const ScratchFolder scratch;  // for the private folder, which stays: nobody is left to remove it
  LaunchProcess launch(launch_arguments("family"), token_, {{"XDG_RUNTIME_DIR", scratch.path()}});
  note_pid(launch.pid());
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));
  const pid_t shim = launch.shim();
  launch.signal(SIGSTOP);  // it must not see the end of its shim
  ::kill(shim, SIGKILL);
  launch.signal(SIGKILL);
  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_THAT(folders(), SizeIs(1));

  const JobRun next = run_job(make_job("exit 0", unique_token()));

  ASSERT_TRUE(next.outcome.has_value());
  EXPECT_TRUE(eventually([&] { return processes_with(token_).empty(); }));
  (void)run_job(
      make_job("exit 0", unique_token()));  // should the first one have met dying processes
  EXPECT_THAT(folders(), IsEmpty());
}

TEST_F(Cgroups, Fault10FailureEndsEverythingOfTheRankAtOnce) {
  auto spec = make_job("rank0 leave", token_, 1);
  spec.workers[0].argv = {"/bin/sh",
                          "-c",
                          build_path("tests/fault_worker") + " leave x " + token_ + "; exit 3",
                          token_};
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->exit_code, 3);
  EXPECT_THAT(processes_with(token_), IsEmpty());
  EXPECT_THAT(folders(), IsEmpty());
}

// Real limits need controllers that this hierarchy may not hand down: then a job with limits is refused, and nothing of it
// runs. Each machine shows one of the two, and says which.

TEST_F(Cgroups, Fault4And12WithoutTheControllersAJobWithLimitsIsRefused) {
  if (has_controllers()) GTEST_SKIP() << "the controllers memory and pids can be had";
  const auto expect_refusal = [&](auto set_limit, const std::string& named) {
    auto spec = make_job("echo ran", token_);
    set_limit(spec.limits);
    const JobRun run = run_job(spec);

    ASSERT_TRUE(run.error.has_value());
    EXPECT_EQ(run.error->code(), ErrorCode::kUnsupported);
    EXPECT_THAT(run.error->message(), HasSubstr(named));
    EXPECT_THAT(run.all<supervisor::GenerationStarted>(), IsEmpty());
    EXPECT_THAT(folders(), IsEmpty());
  };
  expect_refusal([](auto& limits) { limits.memory_bytes = 20 << 20; }, "memory.max = 20971520");
  expect_refusal([](auto& limits) { limits.pids = 20; }, "pids.max = 20");
}

TEST_F(Cgroups, Fault4ARankBeyondItsMemoryLimitIsKilledAndNamed) {
  if (!has_controllers()) GTEST_SKIP() << kNoControllers;
  auto spec = make_job("exit 0", token_);
  spec.workers[0].argv = {
      "/bin/sh", "-c", "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $x"};
  spec.limits.memory_bytes = 20 << 20;
  spec.limits.pids = 50;
  const JobRun run = run_job(spec);

  ASSERT_FALSE(run.error) << run.error->what();
  EXPECT_EQ(run.outcome->first_failure->cause, supervisor::ExitCause::kOutOfMemory);
  EXPECT_EQ(run.outcome->first_failure->detail, "limit 20 MiB");
  EXPECT_THAT(folders(), IsEmpty());
}

// Two hundred children, each of which would live for a minute.
TEST_F(Cgroups, Fault12AForkBombIsHeldByThePidsLimit) {
  if (!has_controllers()) GTEST_SKIP() << kNoControllers;
  auto spec = make_job(
      "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i + 1)); done; echo $i are there; exit 0",
      token_);
  spec.limits.pids = 20;
  const JobRun run = run_job(spec);

  ASSERT_FALSE(run.error) << run.error->what();
  EXPECT_FALSE(run.outcome->success);  // the shell ends when it cannot fork
  EXPECT_THAT(processes_with(token_), IsEmpty());
  EXPECT_THAT(folders(), IsEmpty());
}

}  // namespace
}  // namespace accel::test::cgroups_test
