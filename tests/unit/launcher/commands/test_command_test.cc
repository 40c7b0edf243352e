// What `accel test` and `accel train` launch, and where they look for it.

#include "launcher/commands/test_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/libaccel_program.h"
#include "launcher/commands/train_command.h"

namespace accel::launcher::test_command_test {
namespace {

using ::testing::ElementsAre;

TEST(LibaccelProgram, IsLookedForBesideTheProgramAndInItsPrefix) {
  EXPECT_THAT(libaccel_program_places("/usr/bin/accel", "accel-selftest"),
              ElementsAre("/usr/bin/accel-selftest", "/usr/libexec/accel/accel-selftest"));
}

TEST(TestCommand, LaunchesWhatWasAskedForAsALaunchWould) {
  EXPECT_THAT(self_test_launch("", false, "/usr/bin/t"), ElementsAre("/usr/bin/t"));
  EXPECT_THAT(self_test_launch("c.yaml", true, "/usr/bin/t"),
              ElementsAre("--config_file", "c.yaml", "--strict", "/usr/bin/t"));
}

TEST(TrainCommand, GivesTheLauncherWhatStandsBeforeTheModel) {
  EXPECT_THAT(
      or_throw(train_launch({"--num_processes", "2", "llama.pt2", "--data", "a.npy", "b.pt2"},
                            "/usr/bin/t")),
      ElementsAre("--num_processes", "2", "/usr/bin/t", "llama.pt2", "--data", "a.npy", "b.pt2"));
}

TEST(TrainCommand, WithoutAModelIsAnErrorThatSaysHow) {
  const auto words = train_launch({"--num_processes", "2", "train.py"}, "/usr/bin/t");

  ASSERT_FALSE(words);
  EXPECT_EQ(words.error().code(), ErrorCode::kUsage);
  EXPECT_THAT(words.error().remedy(), ::testing::HasSubstr("MODEL.pt2 --data"));
}

}  // namespace
}  // namespace accel::launcher::test_command_test
