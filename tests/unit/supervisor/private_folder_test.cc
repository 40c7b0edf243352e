#include "runtime/supervisor/kernel/private_folder.h"

#include <chrono>
#include <filesystem>
#include <optional>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::supervisor::private_folder_test {
namespace {

namespace fs = std::filesystem;

TEST(PrivateFolder, OnlyItsUserCanEnterAndItGoesWithItsContent) {
  const test::ScratchFolder scratch;
  const std::string path = scratch.file("job");
  {
    const auto folder = PrivateFolder::create(path);
    ASSERT_TRUE(folder.has_value());
    EXPECT_EQ(fs::status(path).permissions(), fs::perms::owner_all);
    scratch.write("job/a/b", "x");
  }

  EXPECT_FALSE(fs::exists(path));
}

TEST(PrivateFolder, WhatExistsIsNotTakenOverAndNotRemoved) {
  const test::ScratchFolder scratch;
  const std::string path = scratch.file("job");
  fs::create_directory(path);

  EXPECT_FALSE(PrivateFolder::create(path).has_value());
  EXPECT_TRUE(fs::exists(path));
}

TEST(PrivateFolder, LinkInItsPlaceIsNotFollowedWhenItIsRemoved) {
  const test::ScratchFolder scratch;
  scratch.write("precious/file", "x");
  fs::create_directory_symlink(scratch.file("precious"), scratch.file("job"));

  remove_private_folder(scratch.file("job"));

  EXPECT_TRUE(fs::exists(scratch.file("precious/file")));
}

// Leaves its folder behind.
void die_with_folder(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    const auto folder = PrivateFolder::create(path);
    ::_exit(folder ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

TEST(PrivateFolder, OfAProcessThatDiedGoesWithTheNextJob) {
  const test::ScratchFolder scratch;
  die_with_folder(scratch.file("accel-dead"));
  scratch.write("accel-dead/error_0_1.json", "{}");
  const auto alive = PrivateFolder::create(scratch.file("accel-alive"));

  remove_abandoned_folders(scratch.path());

  EXPECT_FALSE(fs::exists(scratch.file("accel-dead")));
  EXPECT_TRUE(fs::exists(alive->path()));
}

TEST(PrivateFolder, WhatIsNoneOrHoldsMoreStays) {
  const test::ScratchFolder scratch;
  scratch.write("accel-data/error_0_0.json", "x");
  die_with_folder(scratch.file("accel-used"));
  scratch.write("accel-used/model.bin", "x");
  scratch.write("accel-used/error_0_0.json", "x");
  die_with_folder(scratch.file("other"));
  fs::create_directory_symlink(scratch.file("other"), scratch.file("accel-link"));

  remove_abandoned_folders(scratch.path());

  for (const char* name : {"accel-data/error_0_0.json",
                           "accel-used/model.bin",
                           "accel-used/error_0_0.json",
                           "accel-used/.owner",
                           "other/.owner"})
    EXPECT_TRUE(fs::exists(scratch.file(name))) << name;
}

TEST(PrivateFolder, OfAProcessThatDiedWhileItMadeItGoesLater) {
  const test::ScratchFolder scratch;
  scratch.write("accel-made-now/.owner-new", "");
  const std::string old = scratch.write("accel-dead/.owner-new", "");
  fs::last_write_time(old, fs::last_write_time(old) - std::chrono::minutes(2));

  remove_abandoned_folders(scratch.path());

  EXPECT_FALSE(fs::exists(scratch.file("accel-dead")));
  EXPECT_TRUE(fs::exists(scratch.file("accel-made-now/.owner-new")));
}

TEST(ReadOwnFile, GivesNoMoreThanTheLimit) {
  const test::ScratchFolder scratch;

  EXPECT_EQ(read_own_file(scratch.write("file", "0123456789"), 4), "0123");
  EXPECT_EQ(read_own_file(scratch.file("missing"), 4), "");
}

TEST(ReadOwnFile, FollowsNoLinkAndWaitsForNoPipe) {
  const test::ScratchFolder scratch;
  fs::create_symlink(scratch.write("file", "secret"), scratch.file("link"));
  ASSERT_EQ(::mkfifo(scratch.file("pipe").c_str(), 0600), 0);

  EXPECT_EQ(read_own_file(scratch.file("link"), 100), "");
  EXPECT_EQ(read_own_file(scratch.file("pipe"), 100), "");
}

}  // namespace
}  // namespace accel::supervisor::private_folder_test
