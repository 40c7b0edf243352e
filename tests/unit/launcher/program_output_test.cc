#include "launcher/system/program_output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::program_output_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

const EnvMap kEnvironment = {{"PATH", "/usr/bin:/bin"}};

TEST(ProgramOutputTest, SaysWhatTheProgramSaidAndHowItEnded) {
  const auto output = run_program({"sh", "-c", "echo said; exit 3"}, kEnvironment);

  ASSERT_TRUE(output) << output.error().what();
  EXPECT_EQ(output->out, "said\n");
  EXPECT_EQ(output->exit_code, 3);
}

TEST(ProgramOutputTest, AProgramThatDoesNotEndIsNotWaitedFor) {
  const auto output = run_program({"sh", "-c", "echo begun; exec sleep 1000"}, kEnvironment, 50ms);

  ASSERT_FALSE(output);
  EXPECT_THAT(output.error().message(), HasSubstr("sh did not end within "));
}

TEST(ProgramOutputTest, AProgramThatClosesItsOutputAndGoesOnIsNotWaitedForEither) {
  const auto output = run_program({"sh", "-c", "exec sleep 1000 >&-"}, kEnvironment, 50ms);

  ASSERT_FALSE(output);
  EXPECT_THAT(output.error().message(), HasSubstr("sh did not end within "));
}

}  // namespace
}  // namespace accel::launcher::program_output_test
