#include "runtime/supervisor/private_folder.h"

#include <filesystem>
#include <optional>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::supervisor {
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
}  // namespace accel::supervisor
