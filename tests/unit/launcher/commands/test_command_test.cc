// Where `accel test` looks for its program.

#include "launcher/commands/test_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::test_command_test {
namespace {

using ::testing::ElementsAre;

TEST(TestCommand, LooksBesideTheProgramAndInItsPrefix) {
  EXPECT_THAT(self_test_places("/usr/bin/accel"),
              ElementsAre("/usr/bin/accel-selftest", "/usr/libexec/accel/accel-selftest"));
}

TEST(TestCommand, LaunchesWhatWasAskedForAsALaunchWould) {
  EXPECT_THAT(self_test_launch("", false, "/usr/bin/t"), ElementsAre("/usr/bin/t"));
  EXPECT_THAT(self_test_launch("c.yaml", true, "/usr/bin/t"),
              ElementsAre("--config_file", "c.yaml", "--strict", "/usr/bin/t"));
}

}  // namespace
}  // namespace accel::launcher::test_command_test
