// No process is left, whoever is killed (faults 2, 10 and 27 of docs/reference/faults.md).
//
// Every worker ignores all signals and has a child, a child in a session of its own, a grandchild
// whose parent has ended, and one that also dropped its environment.

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/kernel/process_table.h"
#include "tests/support/fault_job.h"

namespace accel::test::orphans_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::size_t kFamily = 5;  // the worker and its four relatives

class Orphans : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();

  std::vector<std::string> launch_arguments(const std::string& mode) const {
    std::vector<std::string> arguments = {"--num_processes", "2", "--no_python"};
    const auto command = worker_command(mode, token_);
    arguments.insert(arguments.end(), command.begin(), command.end());
    return arguments;
  }
};

TEST_F(Orphans, Fault27KillingTheLauncherLeavesNoProcess) {
  LaunchProcess launch(launch_arguments("family"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));

  launch.signal(SIGKILL);

  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return processes_with(token_).empty(); }));
}

TEST_F(Orphans, Fault27KillingTheShimLeavesNoProcessAndIsReported) {
  LaunchProcess launch(launch_arguments("family"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));
  const pid_t shim = launch.shim();
  ASSERT_GT(shim, 0);

  ::kill(shim, SIGKILL);

  EXPECT_EQ(launch.wait(), error_info(ErrorCode::kShimLost).exit_status);
  EXPECT_THAT(processes_with(token_), IsEmpty());
  EXPECT_THAT(launch.output(), HasSubstr("accel-shim was ended by SIGKILL"));
}

TEST_F(Orphans, Fault2KillingAWorkerLeavesNoProcess) {
  auto arguments = launch_arguments("family");
  arguments.insert(arguments.begin(), {"--stop_grace", "0.2"});
  LaunchProcess launch(arguments, token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));
  pid_t worker = 0;
  for (const auto& entry : supervisor::read_process_table(real_system())) {
    const std::string command = supervisor::read_command(real_system(), entry);
    const bool is_worker = command.find(" family ") != std::string::npos;
    if (entry.parent == launch.shim() && entry.pid == entry.session && is_worker)
      worker = entry.pid;
  }
  ASSERT_GT(worker, 0);

  ::kill(worker, SIGKILL);

  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Orphans, Fault27StoppedLauncherThatIsKilledLeavesNoProcess) {
  LaunchProcess launch(launch_arguments("family"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2 * kFamily), SizeIs(2 * kFamily));

  launch.signal(SIGSTOP);
  launch.signal(SIGKILL);

  EXPECT_EQ(launch.wait(), 128 + SIGKILL);
  EXPECT_TRUE(eventually([&] { return processes_with(token_).empty(); }));
}

TEST_F(Orphans, Fault10LeftoversOfASuccessfulRankAreEndedAndNamed) {
  auto spec = make_job("leave", token_, 2);
  spec.stop.kill_wait = std::chrono::milliseconds(50);
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_TRUE(run.outcome->success);
  EXPECT_EQ(run.outcome->exit_code, 0);
  EXPECT_THAT(run.outcome->leftovers, SizeIs(2 * (kFamily - 1)));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Orphans, Fault10LeftoversOfARankAreEndedWhileOthersGoOn) {
  auto spec = make_job("rank0 leave", token_, 2);
  spec.stop.kill_wait = std::chrono::milliseconds(50);
  std::vector<std::string> after_linger;

  const JobRun run = run_job(spec, [&](supervisor::WorkerHost& host, const auto& event) {
    const auto* exit = std::get_if<supervisor::WorkerExit>(&event);
    if (exit == nullptr || exit->global_rank != 0) return;
    // Rank 1, the shim, and the relative that shed session, group and environment.
    (void)eventually([&] { return processes_with(token_).size() <= 3; });
    after_linger = processes_with(token_);
    host.request(supervisor::Stop{.mode = supervisor::StopMode::kKill, .signal = SIGTERM});
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_THAT(after_linger, SizeIs(::testing::Le(3)));
  EXPECT_THAT(run.outcome->leftovers, SizeIs(kFamily - 2));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Orphans, Fault11ZombiesOfGrandchildrenAreReaped) {
  LaunchProcess launch(launch_arguments("zombies"), token_);
  ASSERT_THAT(launch.wait_for_lines("ready ", 2), SizeIs(2));
  const pid_t shim = launch.shim();

  EXPECT_TRUE(eventually([&] {
    for (const auto& entry : supervisor::read_process_table(real_system())) {
      if (entry.parent == shim && entry.state == 'Z') return false;
    }
    return true;
  }));
  launch.signal(SIGTERM);
  EXPECT_EQ(launch.wait(), 128 + SIGTERM);
}

}  // namespace
}  // namespace accel::test::orphans_test
