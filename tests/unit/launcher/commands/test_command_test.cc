// Where `accel test` looks for its program.

#include "launcher/commands/test_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher {
namespace {

using ::testing::ElementsAre;

TEST(TestCommand, LooksBesideTheProgramAndInItsPrefix) {
  EXPECT_THAT(self_test_places("/usr/bin/accel"),
              ElementsAre("/usr/bin/accel-selftest", "/usr/libexec/accel/accel-selftest"));
}

}  // namespace
}  // namespace accel::launcher
