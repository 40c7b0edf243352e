// What is said of a worker that could not start.

#include "runtime/supervisor/exit_error.h"

#include <cerrno>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/exit_report.h"

namespace accel::supervisor {
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

}  // namespace
}  // namespace accel::supervisor
