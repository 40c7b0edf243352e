#include "runtime/supervisor/spawn/exit_report.h"

#include <cerrno>
#include <csignal>
#include <map>

#include <gtest/gtest.h>

#include "tests/support/fake_system.h"

namespace accel::supervisor::exit_report_test {
namespace {

WaitStatus exited(int code) {
  return {.pid = 7, .code = CLD_EXITED, .status = code};
}
WaitStatus killed(int signal) {
  return {.pid = 7, .code = CLD_KILLED, .status = signal};
}

TEST(ExitReport, SigkillAloneIsASignal) {
  EXPECT_EQ(describe_exit(killed(SIGKILL), {}).cause, ExitCause::kSignaled);
}

TEST(ExitReport, SigkillWithACountedOomKillIsOutOfMemory) {
  EXPECT_EQ(describe_exit(killed(SIGKILL), {.memory_ran_out = true}).cause,
            ExitCause::kOutOfMemory);
}

TEST(ExitReport, AnotherSignalIsNeverOutOfMemory) {
  EXPECT_EQ(describe_exit(killed(SIGSEGV), {.memory_ran_out = true}).cause, ExitCause::kSignaled);
}

TEST(ExitReport, EndAfterOurSignalIsOurDoing) {
  EXPECT_EQ(describe_exit(exited(1), {.was_stopped = true}).cause, ExitCause::kStoppedByUs);
}

TEST(ExitReport, SuccessAfterOurSignalIsSuccess) {
  EXPECT_EQ(describe_exit(exited(0), {.was_stopped = true}).cause, ExitCause::kOk);
}

TEST(ExitReport, ExecFailureKeepsStageAndErrno) {
  const auto exit = describe_exit(exited(127), {.exec_failure = ExecFailure{"chdir", ENOENT}});

  EXPECT_EQ(exit.cause, ExitCause::kExecFailed);
  EXPECT_EQ(exit.stage, "chdir");
  EXPECT_EQ(exit.error_number, ENOENT);
}

TEST(ExitReport, CorePathIsGivenOnlyWhenACoreWasWritten) {
  const WaitStatus dumped = {.pid = 7, .code = CLD_DUMPED, .status = SIGSEGV};

  EXPECT_EQ(describe_exit(dumped, {.core_path = "/cores/7"}).core_path, "/cores/7");
  EXPECT_EQ(describe_exit(killed(SIGSEGV), {.core_path = "/cores/7"}).core_path, "");
}

TEST(ExitReport, ShellExitCodes) {
  EXPECT_EQ(shell_exit_code({.cause = ExitCause::kNonZero, .exit_code = 3}), 3);
  EXPECT_EQ(shell_exit_code({.cause = ExitCause::kSignaled, .signal = SIGSEGV}), 139);
  EXPECT_EQ(shell_exit_code({.cause = ExitCause::kExecFailed, .error_number = ENOENT}), 127);
  EXPECT_EQ(shell_exit_code({.cause = ExitCause::kExecFailed, .error_number = EACCES}), 126);
  EXPECT_EQ(shell_exit_code({.cause = ExitCause::kUnkillable}), 137);
}

TEST(ExitReport, LoaderComplaintIsRecognized) {
  EXPECT_TRUE(names_missing_library(
      "./train: error while loading shared libraries: libx.so.1: cannot open shared object file"));
  EXPECT_FALSE(names_missing_library("import error: no module named x"));
}

TEST(CorePattern, ExpandsWhatIsKnown) {
  EXPECT_EQ(expand_core_pattern("/cores/core.%p.%s%%", false, 12, 11, "/w"), "/cores/core.12.11%");
}

TEST(CorePattern, RelativePathsBeginAtTheWorkingDirectory) {
  EXPECT_EQ(expand_core_pattern("core", true, 12, 11, "/w"), "/w/core.12");
  EXPECT_EQ(expand_core_pattern("core", true, 12, 11, ""), "");
}

TEST(CorePattern, PipesAndUnknownsGiveNothing) {
  EXPECT_EQ(expand_core_pattern("|/usr/lib/systemd/systemd-coredump %P", false, 12, 11, "/w"), "");
  EXPECT_EQ(expand_core_pattern("/cores/%e.%t", false, 12, 11, "/w"), "");
}

TEST(OomKills, AreReadFromTheUnifiedHierarchy) {
  test::FakeSystem system;
  system.files["/proc/self/cgroup"] = "0::/job/a\n";
  system.files["/sys/fs/cgroup/job/a/memory.events"] = "low 0\noom 3\noom_kill 2\n";

  EXPECT_EQ(count_oom_kills(system), 2U);
}

TEST(OomKills, AreReadFromTheMemoryController) {
  test::FakeSystem system;
  system.files["/proc/self/cgroup"] = "12:memory:/job\n0::/\n";
  system.files["/sys/fs/cgroup/memory/job/memory.oom_control"] =
      "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n";

  EXPECT_EQ(count_oom_kills(system), 5U);
}

TEST(OomKills, AreUnknownWithoutACounter) {
  test::FakeSystem system;
  system.files["/proc/self/cgroup"] = "0::/job\n";

  EXPECT_FALSE(count_oom_kills(system).has_value());
}

}  // namespace
}  // namespace accel::supervisor::exit_report_test
