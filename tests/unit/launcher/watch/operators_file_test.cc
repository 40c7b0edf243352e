#include "launcher/watch/operators_file.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/text/text_file.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::operators_file_test {
namespace {

TEST(OperatorsFile, IsTheUsersAloneAndGoneAtTheEnd) {
  const test::ScratchFolder folder;
  const EnvMap environment = {{"TMPDIR", folder.path().string()}};

  auto file = OperatorsFile::write(environment, "7-a", "http://127.0.0.1:1/#token=a");

  ASSERT_TRUE(file) << file.error().message();
  const std::string path = (*file)->path();
  EXPECT_EQ(path, folder.file("accel_dashboard-7-a.url"));
  EXPECT_EQ(std::filesystem::status(path).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  EXPECT_EQ(*read_text_file(path, 1000, "the file"), "http://127.0.0.1:1/#token=a\n");
  file->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST(OperatorsFile, IsNotWrittenThroughALinkOfSomebodyElse) {
  const test::ScratchFolder folder;
  const std::string other = folder.write("other", "as it was");
  std::filesystem::create_symlink(other, folder.file("accel_dashboard-7-a.url"));

  const auto file = OperatorsFile::write({{"TMPDIR", folder.path().string()}}, "7-a", "secret");

  ASSERT_TRUE(file) << file.error().message();
  EXPECT_EQ(*read_text_file(other, 1000, "the file"), "as it was");
}

}  // namespace
}  // namespace accel::launcher::operators_file_test
