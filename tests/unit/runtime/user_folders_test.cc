#include "runtime/user_folders.h"

#include <filesystem>

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include "tests/support/scratch_folder.h"

namespace accel::user_folders_test {
namespace {

TEST(UserFolders, TheDefaultConfigurationFollowsTheVariables) {
  EXPECT_EQ(default_config_path({}, "/h"), "/h/.cache/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(default_config_path({{"XDG_CACHE_HOME", "/x"}}, "/h"),
            "/x/huggingface/accelerate/default_config.yaml");
  EXPECT_EQ(default_config_path({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/f"}}, "/h"),
            "/h/f/accelerate/default_config.yaml");
}

TEST(UserFolders, WithoutAHomeOnlyAbsolutePlacesAreKnown) {
  EXPECT_EQ(default_config_path({}, ""), "");
  EXPECT_EQ(default_config_path({{"HF_HOME", "~/f"}}, ""), "");
  EXPECT_EQ(default_config_path({{"HF_HOME", "/f"}}, ""), "/f/accelerate/default_config.yaml");
}

TEST(UserFolders, WithoutTheVariableTheHomeIsThatOfThePasswordDatabase) {
  const passwd* entry = ::getpwuid(::geteuid());
  const std::string home = entry == nullptr ? "" : entry->pw_dir;

  EXPECT_EQ(home_folder({{"HOME", "/h"}}), "/h");
  EXPECT_EQ(home_folder({}), home);
  EXPECT_EQ(home_folder({{"HOME", ""}}), home);
}

TEST(UserFolders, TemporaryFilesGoWhereTmpdirSaysIfTheyCan) {
  const test::ScratchFolder folder;
  const std::string file = folder.write("file", "");

  EXPECT_EQ(temporary_folder({{"TMPDIR", folder.path()}}), folder.path());
  EXPECT_EQ(temporary_folder({}), "/tmp");
  EXPECT_EQ(temporary_folder({{"TMPDIR", ""}}), "/tmp");
  EXPECT_EQ(temporary_folder({{"TMPDIR", folder.file("missing")}}), "/tmp");
  EXPECT_EQ(temporary_folder({{"TMPDIR", file}}), "/tmp");
  EXPECT_EQ(temporary_folder({{"TMPDIR", "."}}), std::filesystem::current_path().string());
  EXPECT_EQ(temporary_folder({{"TMPDIR", "/"}}), "/");
}

}  // namespace
}  // namespace accel::user_folders_test
