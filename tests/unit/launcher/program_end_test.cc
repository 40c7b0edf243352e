#include "launcher/launch/program_end.h"

#include <new>
#include <stdexcept>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::launcher::program_end_test {
namespace {

using ::testing::HasSubstr;
using ::testing::internal::CaptureStderr;
using ::testing::internal::GetCapturedStderr;

TEST(ProgramEnd, GivesTheStatusOfTheProgram) {
  EXPECT_EQ(status_of_program("accel", [] { return 0; }), 0);
  EXPECT_EQ(status_of_program("accel", [] { return 130; }), 130);
}

TEST(ProgramEnd, AnExceptionIsToldAsAFaultOfOurs) {
  CaptureStderr();
  const int status =
      status_of_program("accel-launch", []() -> int { throw std::runtime_error("a\nb"); });

  EXPECT_EQ(status, error_info(ErrorCode::kInternal).exit_status);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("accel-launch: error [internal]: a\n  b\n"));
}

TEST(ProgramEnd, AnErrorKeepsItsCode) {
  CaptureStderr();
  const int usage =
      status_of_program("accel", []() -> int { throw Error(ErrorCode::kUsage, "there is no x"); });
  const int memory = status_of_program("accel", []() -> int { throw std::bad_alloc(); });

  EXPECT_EQ(usage, error_info(ErrorCode::kUsage).exit_status);
  EXPECT_EQ(memory, error_info(ErrorCode::kOutOfMemory).exit_status);
  EXPECT_THAT(GetCapturedStderr(), HasSubstr("there is no x"));
}

}  // namespace
}  // namespace accel::launcher::program_end_test
