// How workers end and what is said about it (faults 1, 2, 3, 5 and 13 of docs/reference/faults.md).

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "runtime/supervisor/spawn/exit_error.h"
#include "tests/support/fault_job.h"

namespace accel::test::exits_test {
namespace {

using supervisor::ExitCause;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

class Exits : public ::testing::Test {
 protected:
  const std::string token_ = unique_token();

  supervisor::JobOutcome outcome_of(const supervisor::JobSpec& spec) {
    const JobRun run = run_job(spec);
    EXPECT_TRUE(run.outcome.has_value()) << (run.error ? run.error->what() : "no outcome in time");
    return run.outcome.value_or(supervisor::JobOutcome{});
  }

  // A job whose program is `path`.
  supervisor::JobSpec job_of(const std::string& path) const {
    auto spec = make_job("exit 0", token_);
    spec.workers[0].argv = {path};
    return spec;
  }
};

// A file in a folder of its own, gone with the object.
class TemporaryProgram {
 public:
  TemporaryProgram(const std::string& name, const std::string& content, mode_t mode) {
    path_ = std::filesystem::temp_directory_path() / name;
    std::ofstream(path_) << content;
    ::chmod(path_.c_str(), mode);
  }
  ~TemporaryProgram() { std::filesystem::remove(path_); }
  [[nodiscard]] std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

TEST_F(Exits, SuccessOfAllRanksIsSuccess) {
  const auto outcome = outcome_of(make_job("exit 0", token_, 3));

  EXPECT_TRUE(outcome.success);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.exits, SizeIs(3));
  EXPECT_FALSE(outcome.first_failure.has_value());
}

TEST_F(Exits, WhatAWorkerHasForOperatorsIsToldAndInTheReport) {
  const JobRun run = run_job(make_job("notices hot", token_, 2));

  ASSERT_TRUE(run.outcome.has_value()) << (run.error ? run.error->what() : "no outcome in time");
  EXPECT_THAT(run.outcome->notices, UnorderedElementsAre("rank 0: hot", "rank 1: hot"));
  EXPECT_THAT(run.all<supervisor::Notice>(), SizeIs(2));
}

TEST_F(Exits, Fault1ExitCodeOfTheFailingRankIsTheJobs) {
  const auto outcome = outcome_of(make_job("rank0 exit 7", token_, 3));

  EXPECT_EQ(outcome.exit_code, 7);
  ASSERT_TRUE(outcome.first_failure.has_value());
  EXPECT_EQ(outcome.first_failure->global_rank, 0);
  EXPECT_EQ(outcome.first_failure->cause, ExitCause::kNonZero);
}

TEST_F(Exits, Fault1OtherRanksAreStoppedByUs) {
  const auto outcome = outcome_of(make_job("rank0 exit 7", token_, 3));

  ASSERT_THAT(outcome.exits, SizeIs(3));
  EXPECT_EQ(outcome.exits[1].cause, ExitCause::kStoppedByUs);
  EXPECT_EQ(outcome.exits[2].cause, ExitCause::kStoppedByUs);
  EXPECT_EQ(outcome.exits[1].signal, SIGTERM);
}

TEST_F(Exits, Fault2SigkillIsNotCalledOutOfMemory) {
  const auto outcome = outcome_of(make_job("rank0 kill 9", token_, 2));

  EXPECT_EQ(outcome.exit_code, 128 + SIGKILL);
  EXPECT_EQ(outcome.first_failure->cause, ExitCause::kSignaled);
  EXPECT_EQ(outcome.first_failure->signal, SIGKILL);
}

TEST_F(Exits, Fault3SegmentationFaultIsASignal) {
  const auto outcome = outcome_of(make_job("rank0 kill 11", token_, 2));

  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(outcome.first_failure->signal, SIGSEGV);
}

TEST_F(Exits, PeakMemoryOfAWorkerIsKnown) {
  const auto outcome = outcome_of(make_job("exit 0", token_));

  EXPECT_GT(outcome.exits.at(0).peak_rss_bytes, 100'000U);
}

TEST_F(Exits, Fault5RankThatReturnsEarlyLetsTheOthersGoOn) {
  const JobRun run =
      run_job(make_job("rank0 exit 0", token_, 2), [](auto& host, const auto& event) {
        if (std::holds_alternative<supervisor::WorkerExit>(event)) {
          host.request(supervisor::Stop{.signal = SIGTERM});
        }
      });

  ASSERT_TRUE(run.outcome.has_value()) << (run.error ? run.error->what() : "no outcome in time");
  ASSERT_THAT(run.outcome->exits, SizeIs(2));
  EXPECT_EQ(run.outcome->exits[0].cause, ExitCause::kOk);
  EXPECT_EQ(run.outcome->exits[1].cause, ExitCause::kStoppedByUs);
}

TEST_F(Exits, Fault5EarlyReturnIsNamedWhenAnotherRankFails) {
  pid_t other = 0;
  const JobRun run = run_job(make_job("rank0 exit 0", token_, 2), [&](auto&, const auto& event) {
    if (const auto* started = std::get_if<supervisor::GenerationStarted>(&event)) {
      other = static_cast<pid_t>(started->pids.at(1));
    }
    const auto* exit = std::get_if<supervisor::WorkerExit>(&event);
    if (exit != nullptr && exit->global_rank == 0) ::kill(other, SIGKILL);
  });

  ASSERT_TRUE(run.outcome.has_value());
  EXPECT_THAT(run.outcome->notices,
              Contains(HasSubstr("rank 0 had ended with exit code 0 before rank 1 failed")));
}

TEST_F(Exits, Fault13MissingProgramIsReportedAndNotRetried) {
  auto spec = job_of("/does/not/exist");
  spec.restart.max_restarts = 5;
  const auto outcome = outcome_of(spec);

  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_EQ(outcome.restarts, 0);
  EXPECT_EQ(outcome.first_failure->cause, ExitCause::kExecFailed);
  EXPECT_EQ(outcome.first_failure->stage, "execve");
  EXPECT_EQ(outcome.first_failure->error_number, ENOENT);
  EXPECT_EQ(outcome.first_failure->program, "/does/not/exist");
}

TEST_F(Exits, Fault13ProgramNotOnPathIsReported) {
  const auto outcome = outcome_of(job_of("no-such-program-anywhere"));

  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_EQ(outcome.first_failure->stage, "find on PATH");
}

TEST_F(Exits, Fault13ProgramWithoutExecutePermissionIsReported) {
  const TemporaryProgram program(token_, "#!/bin/sh\n", 0644);
  const auto outcome = outcome_of(job_of(program.path()));

  EXPECT_EQ(outcome.exit_code, 126);
  EXPECT_EQ(outcome.first_failure->error_number, EACCES);
}

TEST_F(Exits, Fault13FileThatIsNoProgramIsReported) {
  const TemporaryProgram program(token_, "neither a script nor a binary\n", 0755);
  const auto outcome = outcome_of(job_of(program.path()));

  EXPECT_EQ(outcome.exit_code, 126);
  EXPECT_EQ(outcome.first_failure->error_number, ENOEXEC);
}

TEST_F(Exits, Fault13MissingInterpreterIsReported) {
  const TemporaryProgram program(token_, "#!/no/such/interpreter\n", 0755);
  const auto outcome = outcome_of(job_of(program.path()));

  EXPECT_EQ(outcome.first_failure->cause, ExitCause::kExecFailed);
  EXPECT_EQ(outcome.first_failure->error_number, ENOENT);
}

TEST_F(Exits, Fault13MissingSharedLibraryIsNamedAndNotRetried) {
  auto spec = job_of(build_path("tests/fault_unloadable"));
  spec.restart.max_restarts = 5;
  const auto outcome = outcome_of(spec);

  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_EQ(outcome.restarts, 0);
  EXPECT_EQ(outcome.first_failure->cause, ExitCause::kLibraryMissing);
}

TEST_F(Exits, Fault13ReportNamesTheMissingLibrary) {
  LaunchProcess launch({"--no_python", build_path("tests/fault_unloadable"), token_}, token_);

  EXPECT_EQ(launch.wait(), 127);
  EXPECT_THAT(launch.output(), HasSubstr("[worker.library_missing]"));
  EXPECT_THAT(launch.output(), HasSubstr("needs libfault_library.so, which was not found"));
}

TEST_F(Exits, Fault13MissingWorkingDirectoryIsReported) {
  auto spec = make_job("exit 0", token_);
  spec.cwd = "/does/not/exist";
  const auto outcome = outcome_of(spec);

  EXPECT_EQ(outcome.first_failure->stage, "chdir");
  EXPECT_THAT(error_of(*outcome.first_failure, "rank 0").message(),
              HasSubstr("its folder /does/not/exist cannot be entered"));
}

TEST_F(Exits, OneRankThatCannotStartEndsTheOthers) {
  auto spec = make_job("pause", token_, 3);
  spec.workers[2].argv = {"/does/not/exist"};
  const auto outcome = outcome_of(spec);

  EXPECT_EQ(outcome.exit_code, 127);
  EXPECT_EQ(outcome.first_failure->global_rank, 2);
  EXPECT_THAT(processes_with(token_), IsEmpty());
}

}  // namespace
}  // namespace accel::test::exits_test
