// Workers that make no progress (faults 6 and 7 of docs/reference/faults.md), with real processes; the decisions
// themselves are in hang_clock_test.

#include <csignal>
#include <fstream>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fault_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::hangs_test {
namespace {

using namespace std::chrono_literals;
using supervisor::ExitCause;
using supervisor::GenerationStarted;
using supervisor::HangMode;
using supervisor::Hung;
using supervisor::Restarting;
using supervisor::Stop;
using supervisor::StopMode;
using supervisor::WorkerStopped;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Hangs : public ::testing::Test {
 protected:
  [[nodiscard]] supervisor::JobSpec job(const std::string& mode) const {
    auto spec = make_job(mode, token_, 2);
    spec.hang = {.mode = HangMode::kFixed, .timeout = 2s, .dump_wait = 50ms};
    spec.stop.grace = 200ms;
    return spec;
  }

  const std::string token_ = unique_token();
  ScratchFolder folder_;
};

TEST_F(Hangs, Fault6TheRankThatStoppedFirstIsNamedAndItsStacksAreKept) {
  auto spec = job("beats 6");
  spec.log.dir = folder_.path();

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  ASSERT_THAT(run.all<Hung>(), SizeIs(1));
  EXPECT_EQ(run.all<Hung>()[0].global_rank, 1);
  EXPECT_EQ(run.all<Hung>()[0].step, 5u);
  ASSERT_TRUE(run.outcome->first_failure);
  EXPECT_EQ(run.outcome->first_failure->global_rank, 1);
  EXPECT_EQ(run.outcome->first_failure->cause, ExitCause::kHang);
  EXPECT_THAT(run.outcome->first_failure->detail, HasSubstr("after step 5"));
  EXPECT_EQ(run.outcome->exit_code, 124);
  for (const char* rank : {"0", "1"}) {
    std::ifstream file(folder_.file(token_ + "/attempt_0/" + rank + "/stacks.log"));
    std::stringstream content;
    content << file.rdbuf();
    EXPECT_THAT(content.str(), HasSubstr("(fault_worker), state"));
  }
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Hangs, Fault6AHangIsRestartedWithinTheBudget) {
  auto spec = job("beats 3");
  spec.restart.max_restarts = 1;

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_EQ(run.outcome->restarts, 1);
  ASSERT_THAT(run.all<Restarting>(), SizeIs(1));
  EXPECT_EQ(run.all<Restarting>()[0].because.cause, ExitCause::kHang);
  EXPECT_THAT(run.all<Hung>(), SizeIs(2));
}

TEST_F(Hangs, Fault7AStoppedWorkerIsToldAndStopsTheHangClock) {
  auto spec = job("beats 0");
  std::vector<std::int64_t> pids;
  int num_continued = 0;
  std::chrono::steady_clock::time_point stopped_at{};
  const JobRun run = run_job(spec, [&](auto& host, const auto& event) {
    if (const auto* started = std::get_if<GenerationStarted>(&event)) {
      pids = started->pids;
      ::kill(static_cast<pid_t>(pids[0]), SIGSTOP);
    }
    const auto* stopped = std::get_if<WorkerStopped>(&event);
    if (stopped == nullptr) return;
    EXPECT_EQ(stopped->pid, pids[0]);
    if (stopped->is_stopped) {
      stopped_at = std::chrono::steady_clock::now();
      // Twice the limit: with a clock that runs it would be a hang.
      EXPECT_TRUE(eventually([&] { return std::chrono::steady_clock::now() - stopped_at > 4s; }));
      ::kill(static_cast<pid_t>(pids[0]), SIGCONT);
    } else if (++num_continued == 1) {
      host.request(Stop{.mode = StopMode::kKill});
    }
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_THAT(run.all<WorkerStopped>(), SizeIs(2));
  EXPECT_THAT(run.all<Hung>(), IsEmpty());
}

TEST_F(Hangs, WorkersThatReportNothingAreLeftAlone) {
  auto spec = job("rank0 stops 15");
  spec.hang.timeout = 1ms;
  std::chrono::steady_clock::time_point started_at{};
  const JobRun run = run_job(spec, [&](auto& host, const auto& event) {
    if (!std::holds_alternative<GenerationStarted>(event)) return;
    started_at = std::chrono::steady_clock::now();
    EXPECT_TRUE(eventually([&] { return std::chrono::steady_clock::now() - started_at > 1200ms; }));
    host.request(Stop{.mode = StopMode::kTerminate, .signal = SIGTERM});
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_THAT(run.all<Hung>(), IsEmpty());
  EXPECT_EQ(run.outcome->reason, "stopped by SIGTERM");
}

}  // namespace
}  // namespace accel::test::hangs_test
