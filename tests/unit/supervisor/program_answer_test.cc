#include "runtime/supervisor/spawn/program_answer.h"

#include <cerrno>
#include <chrono>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace accel::supervisor::program_answer_test {
namespace {

using End = ProgramAnswer::End;
using namespace std::chrono_literals;

ProgramAnswer of_script(const std::string& script, const AnswerLimits& limits = {}) {
  return answer_of({.argv = {"/bin/sh", "-c", script}}, limits);
}

bool has_child() {
  return ::waitpid(-1, nullptr, WNOHANG) >= 0 || errno != ECHILD;
}

TEST(ProgramAnswer, HasWhatWasWrittenAndTheExitCode) {
  const ProgramAnswer answer = of_script("cat; echo out; echo err >&2; exit 3");
  EXPECT_EQ(answer.end, End::kEnded);
  EXPECT_EQ(answer.out, "out\n");
  EXPECT_EQ(answer.exit_code, 3);
  EXPECT_EQ(of_script("kill -9 $$").exit_code, 137);
}

TEST(ProgramAnswer, EndsAtItsLimitsAndLeavesNoProcess) {
  const bool had_child = has_child();  // of another test
  EXPECT_EQ(of_script("exec sleep 1000", {.time = 1ms}).end, End::kOutOfTime);
  EXPECT_EQ(of_script("exec >&-; exec sleep 1000", {.time = 100ms}).end, End::kOutOfTime);
  EXPECT_EQ(of_script("exec yes", {.bytes = 100'000}).end, End::kTooLong);
  EXPECT_EQ(has_child(), had_child);
}

TEST(ProgramAnswer, SaysWhyAProgramWasNotStarted) {
  const ProgramAnswer answer = answer_of({.argv = {"/nowhere/program"}});
  ASSERT_EQ(answer.end, End::kNotStarted);
  EXPECT_EQ(answer.failure->stage, "execve");
  EXPECT_EQ(answer.failure->error_number, ENOENT);
}

}  // namespace
}  // namespace accel::supervisor::program_answer_test
