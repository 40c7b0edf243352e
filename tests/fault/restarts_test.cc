// Restarts (faults 14 and 16 of docs/faults.md), and many workers at once.

#include <csignal>
#include <filesystem>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/process_table.h"
#include "tests/support/fault_job.h"

namespace accel::test {
namespace {

using namespace std::chrono_literals;
using supervisor::GenerationStarted;
using supervisor::Restarting;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Restarts : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();
};

std::size_t count_descriptors(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder),
                                                std::filesystem::directory_iterator()));
}

TEST_F(Restarts, FailedGenerationGetsASuccessor) {
  auto spec = make_job("fail-first", token_, 2);
  spec.restart.max_restarts = 1;
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_TRUE(run.outcome->success);
  EXPECT_EQ(run.outcome->restarts, 1);
  EXPECT_THAT(run.all<GenerationStarted>(), SizeIs(2));
}

TEST_F(Restarts, BudgetIsKeptAndTheLastFailureIsTheJobs) {
  auto spec = make_job("exit 9", token_, 2);
  spec.restart.max_restarts = 2;
  spec.restart.backoff_initial = 1ms;
  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_FALSE(run.outcome->success);
  EXPECT_EQ(run.outcome->exit_code, 9);
  EXPECT_EQ(run.outcome->restarts, 2);
}

TEST_F(Restarts, Fault14FirstRestartIsImmediateAndLaterOnesBackOff) {
  auto spec = make_job("exit 9", token_);
  spec.restart.max_restarts = 3;
  spec.restart.backoff_initial = 20ms;
  const JobRun run = run_job(spec);

  const auto restarts = run.all<Restarting>();
  ASSERT_THAT(restarts, SizeIs(3));
  EXPECT_EQ(restarts[0].delay, 0ms);
  EXPECT_GE(restarts[1].delay, 10ms);
  EXPECT_LE(restarts[1].delay, 20ms);
  EXPECT_GE(restarts[2].delay, 20ms);
  EXPECT_LE(restarts[2].delay, 40ms);
}

TEST_F(Restarts, StopDuringTheBackOffEndsTheJob) {
  auto spec = make_job("exit 9", token_);
  spec.restart.max_restarts = 3;
  spec.restart.backoff_initial = 3'600s;
  spec.restart.backoff_max = 3'600s;
  const JobRun run = run_job(spec, [](auto& host, const auto& event) {
    const auto* restarting = std::get_if<Restarting>(&event);
    if (restarting != nullptr && restarting->delay > 0ms) {
      host.request(supervisor::Stop{.mode = supervisor::StopMode::kTerminate, .signal = SIGTERM});
    }
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->exit_code, 128 + SIGTERM);
}

TEST_F(Restarts, NextGenerationStartsWhenTheOldOneIsGone) {
  auto spec = make_job("rank0 exit 9", token_, 2);
  spec.workers[1].argv = worker_command("family", token_);
  spec.stop.grace = 50ms;
  spec.restart.max_restarts = 2;
  spec.restart.backoff_initial = 1ms;
  std::vector<std::int64_t> old_pids;
  bool is_any_old_alive = false;

  const JobRun run = run_job(spec, [&](auto&, const auto& event) {
    const auto* started = std::get_if<GenerationStarted>(&event);
    if (started == nullptr) return;
    for (const std::int64_t pid : old_pids) {
      is_any_old_alive |=
          supervisor::read_process(real_system(), static_cast<pid_t>(pid)).has_value();
    }
    old_pids = started->pids;
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_FALSE(is_any_old_alive);
  EXPECT_EQ(run.outcome->restarts, 2);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Restarts, Fault16DescriptorsOfTheShimStayFlatOver200Restarts) {
  constexpr int kRestarts = 200;
  auto spec = make_job("exit 9", token_, 2);
  spec.restart.max_restarts = kRestarts;
  spec.restart.backoff_initial = 0ms;
  pid_t shim = 0;
  std::set<std::size_t> counts;

  const JobRun run = run_job(spec, [&](auto&, const auto& event) {
    if (const auto* hello = std::get_if<supervisor::Hello>(&event)) {
      shim = static_cast<pid_t>(hello->pid);
    }
    const auto* started = std::get_if<GenerationStarted>(&event);
    if (started == nullptr || started->generation % 50 != 49) return;
    ::kill(shim, SIGSTOP);  // or the descriptors change while they are counted
    counts.insert(count_descriptors(shim));
    ::kill(shim, SIGCONT);
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->restarts, kRestarts);
  // Two workers hold at most three descriptors each while a generation runs.
  ASSERT_FALSE(counts.empty());
  EXPECT_LE(*counts.rbegin() - *counts.begin(), 12U);
  EXPECT_LE(*counts.rbegin(), 64U);
}

TEST_F(Restarts, SixtyFourWorkersStartAndEnd) {
  const JobRun run = run_job(make_job("exit 0", token_, 64));

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_TRUE(run.outcome->success);
  EXPECT_THAT(run.outcome->exits, SizeIs(64));
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

}  // namespace
}  // namespace accel::test
