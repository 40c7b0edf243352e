// The checks that a job asks for before its workers start, with real processes.

#include <csignal>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/protocol/lease.h"
#include "tests/support/driven_job.h"
#include "tests/support/scratch_folder.h"

namespace accel::test::preflight_test {
namespace {

using supervisor::GenerationEnded;
using supervisor::GenerationStarted;
using supervisor::HostEvent;
using supervisor::PreflightCheck;
using supervisor::Prepared;
using supervisor::PrepareFailed;
using supervisor::PrepareGeneration;
using supervisor::StopGeneration;
using supervisor::StopMode;
using supervisor::WorkerHost;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class Preflight : public ::testing::Test {
 protected:
  static PreflightCheck check(const std::string& name, const std::string& script) {
    return {.name = name, .argv = {"/bin/sh", "-c", script}, .limit = std::chrono::seconds(60)};
  }
  supervisor::JobSpec job(const std::string& mode, std::vector<PreflightCheck> checks) const {
    auto spec = make_job(mode, token_);
    spec.preflight = std::move(checks);
    spec.cwd = folder_.path().string();
    return spec;
  }
  [[nodiscard]] std::string file(const std::string& name) const { return folder_.file(name); }
  [[nodiscard]] bool exists(const std::string& name) const {
    return std::ifstream(file(name)).good();
  }
  [[nodiscard]] std::string content(const std::string& name) const {
    std::ifstream in(file(name));
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }

  const std::string token_ = unique_token();
  const ScratchFolder folder_;
};

TEST_F(Preflight, ChecksRunOneAfterTheOtherInTheJobsFolderAndEnvironmentBeforeAnyWorker) {
  auto spec = job("exit 0",
                  {check("first", "echo $OF_THE_JOB >> order; test ! -t 0"),
                   check("second", "echo second $ACCEL_JOB_ID >> order")});
  spec.env["OF_THE_JOB"] = "first";
  bool was_there = false;

  const JobRun run = run_job(spec, [&](WorkerHost&, const HostEvent& event) {
    if (std::holds_alternative<GenerationStarted>(event))
      was_there = content("order") == "first\nsecond " + token_ + "\n";
  });

  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_TRUE(run.outcome->success);
  EXPECT_TRUE(was_there);
}

TEST_F(Preflight, AFailedCheckIsNamedWithItsLastLinesAndNoWorkerStarts) {
  const JobRun run = run_job(job(
      "exit 0", {check("disk", "seq 9; echo no room >&2; exit 3"), check("next", "touch ran")}));

  ASSERT_TRUE(run.error);
  EXPECT_EQ(run.error->code(), ErrorCode::kPreflightFailed);
  EXPECT_EQ(run.error->message(),
            "preflight check 'disk' ended with exit code 3; its last lines: 8 | 9 | no room");
  EXPECT_THAT(run.all<GenerationStarted>(), IsEmpty());
  EXPECT_FALSE(exists("ran"));
}

TEST_F(Preflight, ACheckIsKilledWithItsGroupAtItsLimit) {
  auto slow = check("slow", "sleep 1000 & sleep 1000 # " + token_);
  slow.limit = std::chrono::milliseconds(200);

  const JobRun run = run_job(job("exit 0", {slow}));

  ASSERT_TRUE(run.error);
  EXPECT_EQ(run.error->message(), "preflight check 'slow' took longer than its limit of 0.2 s");
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Preflight, AProgramThatIsMissingOrEndedByASignalSaysSo) {
  auto missing = check("gone", "");
  missing.argv = {file("no_such_program")};
  const JobRun without = run_job(job("exit 0", {missing}));
  ASSERT_TRUE(without.error);
  EXPECT_THAT(without.error->message(), HasSubstr("could not be started (execve: No such file"));

  const JobRun killed = run_job(job("exit 0", {check("killed", "kill -9 $$")}));
  ASSERT_TRUE(killed.error);
  EXPECT_THAT(killed.error->message(), HasSubstr("was ended by signal 9"));
}

TEST_F(Preflight, ACheckThatFloodsItsOutputCostsNeitherMemoryNorTheLoop) {
  const JobRun run =
      run_job(job("exit 0", {check("flood", "head -c 100000000 /dev/zero; exit 1")}));

  ASSERT_TRUE(run.error);
  EXPECT_THAT(run.error->message(), HasSubstr("ended with exit code 1"));
  EXPECT_LT(run.error->message().size(), 5000U);
}

TEST_F(Preflight, WhatACheckLeavesBehindIsGoneBeforeWorkersStart) {
  std::vector<std::string> left = {"not asked"};

  const JobRun run =
      run_job(job("pause", {check("daemon", "setsid sleep 1000 " + token_ + " & sleep 0.1")}),
              [&](WorkerHost& host, const HostEvent& event) {
                if (!std::holds_alternative<GenerationStarted>(event)) return;
                left.clear();
                for (const std::string& process : processes_with(token_)) {
                  if (process.find("sleep") != std::string::npos) left.push_back(process);
                }
                host.request(supervisor::Stop{.mode = StopMode::kKill});
              });

  EXPECT_THAT(left, IsEmpty());
  ASSERT_TRUE(run.outcome) << (run.error ? run.error->what() : "no outcome in time");
}

TEST_F(Preflight, EachGenerationIsCheckedAnew) {
  auto spec = job("fail-first", {check("count", "echo checked >> count")});
  spec.restart.max_restarts = 1;

  const JobRun run = run_job(spec);

  ASSERT_TRUE(run.outcome);
  EXPECT_TRUE(run.outcome->success);
  EXPECT_EQ(content("count"), "checked\nchecked\n");
}

TEST_F(Preflight, CtrlCEndsTheChecks) {
  LaunchProcess launch({"--num_processes",
                        "1",
                        "--preflight",
                        "slow=echo checking; echo > " + file("begun") + "; exec sleep 1000",
                        "--no_python",
                        "/bin/true"},
                       token_);
  ASSERT_TRUE(eventually([&] { return exists("begun"); }));

  launch.signal(SIGINT);

  EXPECT_EQ(launch.wait(), 128 + SIGINT) << launch.output();
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Preflight, TheLauncherSaysWhichCheckFailedAndEndsWithItsStatus) {
  LaunchProcess launch({"--num_processes",
                        "1",
                        "--preflight",
                        "good=true",
                        "--preflight",
                        "scratch=test -d /no/such/folder || { echo nothing there; false; }",
                        "--no_python",
                        "/bin/true"},
                       token_);

  EXPECT_EQ(launch.wait(), 75) << launch.output();
  EXPECT_THAT(launch.output(), HasSubstr("error [preflight.failed]"));
  EXPECT_THAT(launch.output(),
              HasSubstr("'scratch' ended with exit code 1; its last lines: nothing there"));
}

// ---- generations that the owner drives ----

supervisor::JobSpec driven(supervisor::JobSpec spec) {
  spec.control = supervisor::GenerationControl::kOwner;
  spec.node_id = "node-a";
  return spec;
}

TEST_F(Preflight, AGenerationIsPreparedWhenItsChecksHavePassedAndMayBeTriedAgain) {
  DrivenJob shim(
      driven(job("exit 0", {check("once", "test -e there || { touch there; false; }")})));

  shim.ask(PrepareGeneration{.generation = 1, .world_size = 1});
  EXPECT_EQ(shim.wait_for<PrepareFailed>().error.code(), ErrorCode::kPreflightFailed);
  shim.ask(PrepareGeneration{.generation = 2, .world_size = 1});
  EXPECT_EQ(shim.wait_for<Prepared>().generation, 2);

  shim.ask(supervisor::Finish{});
  (void)shim.wait_for<supervisor::JobOutcome>();
}

TEST_F(Preflight, AStopOfTheGenerationEndsItsChecks) {
  DrivenJob shim(driven(job("exit 0", {check("slow", "touch begun; exec sleep 1000")})));
  shim.ask(PrepareGeneration{.generation = 1, .world_size = 1});
  ASSERT_TRUE(eventually([&] { return exists("begun"); }));
  shim.ask(supervisor::TakeSnapshot{});
  EXPECT_EQ(shim.wait_for<supervisor::Snapshot>().state, "checking");

  shim.ask(StopGeneration{.generation = 1, .mode = StopMode::kTerminate});

  EXPECT_EQ(shim.wait_for<GenerationEnded>().generation, 1);
  shim.ask(PrepareGeneration{.generation = 2, .world_size = 1});
  shim.ask(supervisor::Finish{});
  EXPECT_THAT(shim.wait_for<supervisor::JobOutcome>().exits, IsEmpty());
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

TEST_F(Preflight, ALeaseThatEndsDuringTheChecksEndsThem) {
  DrivenJob shim(driven(job("exit 0", {check("slow", "exec sleep 1000")})));

  shim.ask(
      PrepareGeneration{.generation = 1,
                        .world_size = 1,
                        .lease_until = supervisor::boot_time() + std::chrono::milliseconds(100)});

  EXPECT_EQ(shim.wait_for<GenerationEnded>().generation, 1);
  shim.ask(supervisor::Finish{});
  (void)shim.wait_for<supervisor::JobOutcome>();
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

}  // namespace
}  // namespace accel::test::preflight_test
