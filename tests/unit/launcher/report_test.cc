#include "launcher/run/report.h"

#include <algorithm>
#include <csignal>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::report_test {
namespace {

using supervisor::ExitCause;
using supervisor::JobOutcome;
using supervisor::WorkerExit;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

WorkerExit exit_of(int rank, ExitCause cause) {
  WorkerExit exit;
  exit.global_rank = exit.local_rank = rank;
  exit.pid = 100 + rank;
  exit.cause = cause;
  exit.program = "/opt/train";
  return exit;
}

JobOutcome failure(WorkerExit first) {
  JobOutcome outcome;
  outcome.reason = "failed";
  outcome.exits = {first,
                   exit_of(0, ExitCause::kStoppedByUs),
                   exit_of(2, ExitCause::kStoppedByUs),
                   exit_of(3, ExitCause::kOk)};
  outcome.first_failure = std::move(first);
  return outcome;
}

constexpr const char* kErrorFile =
    R"({"message": {"message": "ValueError: bad data", "extraInfo": {"py_callstack": "Traceback\nValueError: bad data\n"}}})";

std::string report_of(const JobOutcome& outcome) {
  return render_report(outcome, 4, {});
}

TEST(Report, ASuccessSaysNothing) {
  JobOutcome outcome;
  outcome.success = true;

  EXPECT_THAT(report_of(outcome), IsEmpty());
}

TEST(Report, AProcessThatStartsTheRanksHasItsOwnName) {
  WorkerExit exit = exit_of(1, ExitCause::kNonZero);
  exit.exit_code = 3;

  EXPECT_THAT(render_report(failure(exit), 4, {.names = {"mpirun", "mpiexec"}}),
              HasSubstr("mpiexec ended with exit code 3"));
  EXPECT_THAT(render_report(failure(exit), 4, {.hosts = {"w-1", "w-2"}}),
              HasSubstr("host w-2 ended with exit code 3"));
}

TEST(Report, AHostThatSshDoesNotReachIsToldInItsWords) {
  WorkerExit exit = exit_of(1, ExitCause::kNonZero);
  exit.exit_code = 255;
  exit.tail = "first\nssh: connect to host w-2 port 22: No route to host\n";

  EXPECT_THAT(render_report(failure(exit), 4, {.hosts = {"w-1", "w-2"}}),
              AllOf(HasSubstr("host w-2 ended with exit code 255: ssh: connect to host w-2"),
                    HasSubstr("`ssh w-2 true`")));
}

TEST(Report, TheNewestCheckpointIsNamedWhateverEndedTheJob) {
  JobOutcome failed = failure(exit_of(1, ExitCause::kNonZero));
  JobOutcome stopped;
  stopped.reason = "stopped by SIGTERM";
  for (JobOutcome* outcome : {&failed, &stopped}) {
    outcome->checkpoint = {.step = 120, .path = "/runs/a/checkpoint_4"};
  }

  EXPECT_THAT(report_of(failed), HasSubstr("\n  checkpoint /runs/a/checkpoint_4 (step 120)\n"));
  EXPECT_EQ(report_of(stopped),
            "accel-launch: stopped by SIGTERM\n"
            "accel-launch: the newest checkpoint is /runs/a/checkpoint_4 (step 120)\n");
}

TEST(Report, TheFirstFailingRankComesFirstAndTheOthersFollow) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.exit_code = 3;
  first.tail = "step 1\nout of data\n";

  EXPECT_EQ(report_of(failure(first)),
            "last lines of rank 1:\n"
            "  | step 1\n"
            "  | out of data\n"
            "accel-launch: error [worker.failed]: rank 1 of 4 ended with exit code 3\n"
            "  others    2 other ranks were stopped; 1 other rank had finished\n"
            "  try       read the worker's last lines above\n"
            "  more      docs/reference/errors.md#worker-failed\n");
}

TEST(Report, SignalsHaveNamesAndTheCoreFileACommand) {
  WorkerExit first = exit_of(1, ExitCause::kSignaled);
  first.signal = SIGSEGV;
  first.core_dumped = true;
  first.core_path = "/tmp/core.101";

  const std::string text = report_of(failure(first));

  EXPECT_THAT(text, HasSubstr("rank 1 of 4 was ended by SIGSEGV (Segmentation fault)"));
  EXPECT_THAT(text, HasSubstr("core      /tmp/core.101"));
  EXPECT_THAT(text, HasSubstr("try       gdb /opt/train /tmp/core.101"));
}

TEST(Report, SigkillPointsAtTheOutOfMemoryKillerWithoutClaimingIt) {
  WorkerExit first = exit_of(1, ExitCause::kSignaled);
  first.signal = SIGKILL;

  EXPECT_THAT(report_of(failure(first)), AllOf(HasSubstr("SIGKILL (Killed)"), HasSubstr("dmesg")));
}

TEST(Report, ProvenMemoryExhaustionIsNamed) {
  WorkerExit first = exit_of(1, ExitCause::kOutOfMemory);
  first.peak_rss_bytes = 3ULL << 30;

  EXPECT_THAT(report_of(failure(first)),
              AllOf(HasSubstr("[worker.out_of_memory]"), HasSubstr("3072 MiB")));
}

TEST(Report, AMissingLibraryIsNamed) {
  WorkerExit first = exit_of(1, ExitCause::kLibraryMissing);
  first.tail =
      "/opt/train: error while loading shared libraries: libfoo.so.1: cannot open shared object "
      "file: No "
      "such file or directory\n";

  const std::string text = report_of(failure(first));

  EXPECT_THAT(
      text,
      HasSubstr(
          "[worker.library_missing]: rank 1 of 4 could not start: /opt/train needs libfoo.so.1"));
  EXPECT_THAT(text, HasSubstr("ldd /opt/train"));
}

TEST(Report, AFailedExecSaysTheStepAndTheReason) {
  WorkerExit first = exit_of(1, ExitCause::kExecFailed);
  first.stage = "execve";
  first.error_number = ENOEXEC;

  EXPECT_THAT(report_of(failure(first)),
              HasSubstr("execve of /opt/train failed: Exec format error"));
}

TEST(Report, ThePythonTracebackOfTheErrorFileIsShownOnce) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.exit_code = 1;
  first.error_file =
      R"({"message": {"message": "ValueError: bad data", "extraInfo": {"py_callstack":
      "Traceback (most recent call last):\n  File \"t.py\", line 3, in main\nValueError: bad data\n", "timestamp": "1"}}})";
  std::erase(first.error_file, '\n');

  const std::string caught = report_of(failure(first));
  first.tail = "Traceback (most recent call last):\n  File \"t.py\"\nValueError: bad data\n";
  const std::string printed = report_of(failure(first));

  EXPECT_THAT(caught, StartsWith("traceback of rank 1:\n  | Traceback"));
  EXPECT_THAT(caught, HasSubstr("cause     ValueError: bad data"));
  EXPECT_THAT(printed, Not(HasSubstr("traceback of rank 1")));
}

TEST(Report, ThePythonTracebackReplacesTheLastLinesWhereOtherLinesCameAfterIt) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.exit_code = 1;
  first.error_file = kErrorFile;
  first.tail = "Traceback\nValueError: bad data\n";
  for (int i = 0; i < 30; ++i) first.tail += "warning: destroy_process_group() was not called\n";

  const std::string text = report_of(failure(first));

  EXPECT_THAT(text, HasSubstr("traceback of rank 1"));
  EXPECT_THAT(text, Not(HasSubstr("last lines of rank 1")));
}

TEST(Report, WhatTheOnlyRankPrintedIsNotShownAgain) {
  WorkerExit first = exit_of(0, ExitCause::kNonZero);
  first.exit_code = 1;
  first.error_file = kErrorFile;
  const ReportStyle on_screen = {.is_on_screen = true};

  const std::string at_a_terminal = render_report(failure(first), 1, on_screen);
  first.tail = "Traceback\nValueError: bad data\nwarning: not destroyed\n";
  const std::string piped = render_report(failure(first), 1, on_screen);
  first.tail = "an error was caught\n";
  const std::string caught = render_report(failure(first), 1, on_screen);

  for (const std::string& text : {at_a_terminal, piped}) {
    EXPECT_THAT(text, Not(HasSubstr(" | ")));
    EXPECT_THAT(text, HasSubstr("cause     ValueError: bad data"));
  }
  EXPECT_THAT(caught, StartsWith("traceback of rank 0:\n  | Traceback"));
  EXPECT_THAT(caught, Not(HasSubstr("last lines of rank")));
}

TEST(Report, TheErrorRecordOfTheChannelIsTheCauseWithoutAnErrorFile) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.last_error = "[shape.mismatch] rank 1 gave [2, 3]";

  EXPECT_THAT(report_of(failure(first)),
              HasSubstr("cause     [shape.mismatch] rank 1 gave [2, 3]"));
}

TEST(Report, HostileErrorFilesAreIgnored) {
  for (const char* content : {"",
                              "{",
                              "[]",
                              "3",
                              R"({"message": 3})",
                              R"({"message": {"message": []}})",
                              R"({"message": {"extraInfo": {"py_callstack": {}}}})"}) {
    WorkerExit first = exit_of(1, ExitCause::kNonZero);
    first.error_file = content;
    EXPECT_THAT(report_of(failure(first)), Not(HasSubstr("cause"))) << content;
  }
}

TEST(Report, AnErrorFileWithPlainTextIsShown) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.error_file = R"({"message": "out of tokens"})";

  EXPECT_THAT(report_of(failure(first)), HasSubstr("cause     out of tokens"));
}

TEST(Report, TerminalCodesAndProgressBarsOfTheTailAreReduced) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  first.tail = "10%\r50%\r90%\n\x1b[31mred\x1b[0m\x07\n";

  EXPECT_THAT(report_of(failure(first)), HasSubstr("  | 90%\n  | red\n"));
}

TEST(Report, OnlyTheLastLinesAreShown) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);
  for (int i = 0; i < 1000; ++i) first.tail += "line " + std::to_string(i) + "\n";

  const std::string text = report_of(failure(first));

  EXPECT_THAT(text, StartsWith("last lines of rank 1:\n  | line 980\n"));
  EXPECT_THAT(text, HasSubstr("  | line 998\n  | line 999\naccel-launch"));
}

TEST(Report, TheBlockHasAtMostSixLines) {
  WorkerExit first = exit_of(1, ExitCause::kSignaled);
  first.signal = SIGABRT;
  first.core_path = "/tmp/core";
  first.last_error = "something";
  JobOutcome outcome = failure(first);
  outcome.restarts = 2;

  const std::string text = report_of(outcome);

  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
  EXPECT_THAT(text, HasSubstr("2 restarts were used"));
}

TEST(Report, OneProcessIsNotCounted) {
  WorkerExit first = exit_of(0, ExitCause::kNonZero);
  first.exit_code = 2;
  JobOutcome outcome;
  outcome.exits = {first};
  outcome.first_failure = first;

  EXPECT_THAT(
      render_report(outcome, 1, {}),
      StartsWith("accel-launch: error [worker.failed]: rank 0 ended with exit code 2\n  try"));
}

TEST(Report, AJobThatWasStoppedSaysBySomethingElseThanAnError) {
  JobOutcome outcome;
  outcome.reason = "stopped by SIGINT";

  EXPECT_EQ(report_of(outcome), "accel-launch: stopped by SIGINT\n");
}

TEST(Report, LeftoversAndNoticesAreWarnings) {
  JobOutcome outcome;
  outcome.success = true;
  outcome.leftovers = {{.pid = 7, .command = "sleep 100"}};
  outcome.notices = {"the log of rank 3 dropped 10 lines", "the log of rank 3 dropped 10 lines"};

  EXPECT_EQ(
      report_of(outcome),
      "accel-launch: warning: the log of rank 3 dropped 10 lines\n"
      "accel-launch: warning: 1 process outlived the rank and had to be ended: 7 sleep 100\n");
}

TEST(Report, ColorsAreOnlyForTheErrorWord) {
  WorkerExit first = exit_of(1, ExitCause::kNonZero);

  const std::string text = render_report(failure(first), 4, {.color = true});

  EXPECT_THAT(text, StartsWith("accel-launch: \x1b[1;31merror [worker.failed]\x1b[0m: rank 1"));
}

}  // namespace
}  // namespace accel::launcher::report_test
