#include "checkpoint_tools/merge/pending_file.h"

#include <csignal>
#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <accel/error.h>

#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::pending_file_test {
namespace {

namespace fs = std::filesystem;
using test::FaultyDisk;
using test::ScratchFolder;

std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void publish(FaultyDisk& disk, const std::string& path, std::string_view text) {
  PendingFile file(disk, path, text.size());
  file.write(0, std::as_bytes(std::span(text)));
  file.publish();
}

TEST(PendingFile, AFolderThatIsGoneIsAnErrorThatNamesThePlace) {
  const ScratchFolder folder;
  const fs::path before = fs::current_path();
  fs::create_directory(folder.file("gone"));
  fs::current_path(folder.file("gone"));
  fs::remove(folder.file("gone"));
  FaultyDisk disk;

  EXPECT_THROW(PendingFile(disk, "out/model", 3), Error);

  fs::current_path(before);
}

TEST(PendingFile, IsThereAtOnceAndAloneWhenItIsWhole) {
  const ScratchFolder folder;
  FaultyDisk disk;
  const std::string path = folder.write("model", "old");
  {
    PendingFile file(disk, path, 3);
    file.write(0, std::as_bytes(std::span("new", 3)));
    EXPECT_EQ(content_of(path), "old");
  }
  EXPECT_EQ(content_of(path), "old");
  publish(disk, path, "new");
  EXPECT_EQ(content_of(path), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

// In a container every run has process id 1.
TEST(PendingFile, WhatAKilledRunOfTheSameProcessIdLeftIsNotInItsWay) {
  const ScratchFolder folder;
  FaultyDisk disk;
  folder.write(".model." + std::to_string(::getpid()) + ".tmp", "half");
  publish(disk, folder.file("model"), "whole");
  EXPECT_EQ(content_of(folder.file("model")), "whole");

  PendingFile first(disk, folder.file("model"), 1);
  PendingFile second(disk, folder.file("model"), 1);
}

TEST(PendingFile, EveryFolderThatItMadeIsDurableInItsParent) {
  const ScratchFolder folder;
  for (const char* parent : {"", "a", "a/b"}) {
    FaultyDisk disk;
    fs::remove_all(folder.file("a"));
    disk.fail_sync_of(*parent == '\0' ? folder.path() : folder.path() / parent);
    EXPECT_THROW(publish(disk, folder.file("a/b/model"), "x"), Error) << "'" << parent << "'";
  }
  FaultyDisk disk;
  disk.fail_sync_of(folder.path() / "a");
  publish(disk, folder.file("a/b/model"), "x");  // a/b is there: nothing is new in a
}

TEST(PendingFile, WhatIsNotFinishedTakesTheFoldersThatItMadeAlong) {
  const ScratchFolder folder;
  FaultyDisk disk;
  { const PendingFile file(disk, folder.file("a/b/model"), 3); }
  EXPECT_TRUE(fs::is_empty(folder.path()));

  fs::create_directory(folder.file("a"));
  { const PendingFile file(disk, folder.file("a/b/model"), 3); }
  EXPECT_TRUE(fs::is_empty(folder.path() / "a"));
}

TEST(PendingFileDeathTest, ASignalThatEndsTheProgramLeavesNothingOfIt) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGXFSZ}) {
    const ScratchFolder folder;
    const auto merge_interrupted = [&] {
      ::signal(signal, SIG_DFL);  // a parent may have had it ignored
      Leftovers::remove_on_signals();
      FaultyDisk disk;
      const PendingFile first(disk, folder.file("model"), 3);
      const PendingFile second(disk, folder.file("a/b/model"), 3);
      ::raise(signal);
    };
    EXPECT_EXIT(merge_interrupted(), ::testing::KilledBySignal(signal), "");
    EXPECT_TRUE(fs::is_empty(folder.path())) << signal;
  }
}

TEST(PendingFileDeathTest, ASignalThatNohupIgnoresStaysIgnored) {
  const ScratchFolder folder;
  const auto merge_under_nohup = [&] {
    ::signal(SIGHUP, SIG_IGN);
    Leftovers::remove_on_signals();
    FaultyDisk disk;
    PendingFile file(disk, folder.file("model"), 3);
    ::raise(SIGHUP);
    file.publish();
    ::_exit(0);
  };
  EXPECT_EXIT(merge_under_nohup(), ::testing::ExitedWithCode(0), "");
  EXPECT_TRUE(fs::exists(folder.file("model")));
}

}  // namespace
}  // namespace accel::launcher::pending_file_test
