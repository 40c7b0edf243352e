#include "launcher/run/rank_failure.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/run/report.h"

namespace accel::launcher::rank_failure_test {
namespace {

using ::testing::HasSubstr;

// As Open MPI 4.1.4 prints it.
const std::string kKilled =
    "--------------------------------------------------------------------------\n"
    "Primary job  terminated normally, but 1 process returned\n"
    "a non-zero exit code. Per user-direction, the job has been aborted.\n"
    "--------------------------------------------------------------------------\n"
    "--------------------------------------------------------------------------\n"
    "mpirun noticed that process rank 3 with PID 12186 on node two exited on signal 9 (Killed).\n"
    "--------------------------------------------------------------------------\n";

TEST(RankFailure, OpenMpiNamesRankHostAndSignal) {
  EXPECT_EQ(describe_rank_failure(kKilled), "rank 3 on two was ended by signal 9 (Killed)");
}

TEST(RankFailure, OpenMpiNamesTheRankOfAnExitCode) {
  EXPECT_EQ(
      describe_rank_failure(
          "digits: cannot read /nope\n"
          "mpirun detected that one or more processes exited with non-zero status, thus causing\n"
          "the job to be terminated. The first process to do so was:\n"
          "\n"
          "  Process name: [[30591,1],1]\n"
          "  Exit code:    7\n"
          "--------------------------------------------------------------------------\n"),
      "rank 1 ended with exit code 7");
}

TEST(RankFailure, WhatARankPrintedBeforeDoesNotCount) {
  EXPECT_EQ(
      describe_rank_failure(
          "x noticed that process rank 0 with PID 1 on node here exited on signal 1 (Hangup).\n" +
          kKilled),
      "rank 3 on two was ended by signal 9 (Killed)");
  EXPECT_EQ(describe_rank_failure(""), "");
  EXPECT_EQ(describe_rank_failure("mpirun noticed that process rank X exited\n"), "");
  EXPECT_EQ(describe_rank_failure(std::string(1U << 16, '=')), "");
}

supervisor::JobOutcome failure() {
  supervisor::WorkerExit exit;
  exit.cause = supervisor::ExitCause::kNonZero;
  exit.exit_code = 137;
  exit.tail = kKilled;
  supervisor::JobOutcome outcome;
  outcome.exit_code = 137;
  outcome.exits = {exit};
  outcome.first_failure = exit;
  return outcome;
}

TEST(RankFailure, TheReportOfMpirunNamesIt) {
  EXPECT_THAT(render_report(failure(), 1, {.names = {"mpirun"}}),
              HasSubstr("mpirun ended with exit code 137\n"
                        "  cause     rank 3 on two was ended by signal 9 (Killed)\n"));
}

TEST(RankFailure, ARankThatMerelyPrintsSuchWordsIsNotAsked) {
  EXPECT_EQ(render_report(failure(), 1, {}).find("cause"), std::string::npos);
}

}  // namespace
}  // namespace accel::launcher::rank_failure_test
