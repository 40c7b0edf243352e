// What is said of a worker that could not start.

#include "runtime/supervisor/spawn/exit_error.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::supervisor::exit_error_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

WorkerExit failed_start(int error_number) {
  WorkerExit exit;
  exit.cause = ExitCause::kExecFailed;
  exit.program = "./train";
  exit.stage = "execve";
  exit.error_number = error_number;
  return exit;
}

Error error_of_failed_start(int error_number) {
  return error_of(failed_start(error_number), "rank 2 of 4");
}

TEST(ExitError, AProgramThatCannotBeExecutedIsNamed) {
  const Error error = error_of_failed_start(ENOEXEC);
  EXPECT_EQ(error.code(), ErrorCode::kExecFailed);
  EXPECT_THAT(error.message(), HasSubstr("rank 2 of 4 could not start: execve of ./train failed"));
}

TEST(ExitError, AFolderThatCannotBeEnteredIsNamed) {
  WorkerExit exit = failed_start(ENOENT);
  exit.stage = "chdir";
  exit.detail = "/nope";
  const Error error = error_of(exit, "rank 2 of 4");
  EXPECT_EQ(error.code(), ErrorCode::kExecFailed);
  EXPECT_THAT(error.message(), HasSubstr("its folder /nope cannot be entered: No such file"));
  EXPECT_THAT(error.message(), Not(HasSubstr("./train")));
  EXPECT_THAT(error.remedy(), HasSubstr("make the folder"));
}

TEST(ExitError, AWorkerForWhichNoFileCouldBeOpenedHasALimitToRaise) {
  for (const int error_number : {EMFILE, ENFILE}) {
    const Error error = error_of_failed_start(error_number);
    EXPECT_EQ(error.code(), ErrorCode::kSpawnFailed);
    EXPECT_THAT(error.message(), HasSubstr("rank 2 of 4 could not start: no more files"));
    EXPECT_THAT(error.message(), Not(HasSubstr("./train")));
    EXPECT_EQ(shell_exit_code(failed_start(error_number)), 71);
    EXPECT_THAT(error.remedy(), HasSubstr(error_number == EMFILE ? "ulimit -n" : "fs.file-max"));
  }
}

TEST(ExitError, AWorkerForWhichThereWasNoProcessHasALimitToRaise) {
  WorkerExit exit = failed_start(EAGAIN);
  exit.stage = "clone";
  const Error error = error_of(exit, "rank 2 of 4");
  EXPECT_EQ(error.code(), ErrorCode::kSpawnFailed);
  EXPECT_THAT(error.message(), HasSubstr("rank 2 of 4 could not start: no more processes"));
  EXPECT_THAT(error.message(), Not(HasSubstr("./train")));
  EXPECT_EQ(shell_exit_code(exit), 71);
  EXPECT_THAT(error.remedy(), HasSubstr("ulimit -u"));
  EXPECT_THAT(error.remedy(), HasSubstr("pids.max"));
}

TEST(ExitError, WhatARankSaidBeginsWithItsFirstLine) {
  const OwnWords words = read_error_file(
      R"({"message": {"message": "c10::Error: shapes differ\nframe #0: f\nframe #1: g\n"}})");
  EXPECT_EQ(words.message, "c10::Error: shapes differ");
  EXPECT_EQ(words.text, "c10::Error: shapes differ\nframe #0: f\nframe #1: g\n");
  EXPECT_EQ(own_reason({}, words), "c10::Error: shapes differ");

  WorkerExit exit;
  exit.last_error = "[shape.mismatch] [2] and [3]\nframe #0: f";
  EXPECT_EQ(own_reason(exit, {}), "[shape.mismatch] [2] and [3]");
}

TEST(ExitError, ALineThatOnlyIntroducesTakesTheNextAlong) {
  const auto line = [](const char* text) {
    return read_error_file(std::string(R"({"message": ")") + text + "\"}").message;
  };
  EXPECT_EQ(line(R"(RuntimeError: Error(s) in loading:\n\tMissing key(s): \"a\"\n\tmore)"),
            "RuntimeError: Error(s) in loading: Missing key(s): \"a\"");
  EXPECT_EQ(line(R"(ValueError: \n\nno rows\n)"), "ValueError: no rows");
  EXPECT_EQ(line(R"(\n\n  out of tokens)"), "out of tokens");
  EXPECT_EQ(line(R"(\n)"), "");
}

}  // namespace
}  // namespace accel::supervisor::exit_error_test
