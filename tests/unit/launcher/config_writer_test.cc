#include "launcher/config/config_writer.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "launcher/documents/config_document.h"
#include "runtime/unique_fd.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::config_writer_test {
namespace {

using test::ScratchFolder;

std::string content_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ConfigWriter, WhatJsonCannotSayIsAnErrorAndNoFile) {
  const ScratchFolder folder;
  const auto document =
      or_throw(parse_config("a: {b: [1, .inf]}\nc: -.inf\n", ConfigFormat::kYaml, "config.yaml"));

  const auto as_json = write_config(folder.file("config.json"), document);

  ASSERT_FALSE(as_json);
  EXPECT_EQ(as_json.error().code(), ErrorCode::kConfigInvalidValue);
  EXPECT_EQ(as_json.error().message(), "a.b is an infinite number or none, which JSON cannot say");
  EXPECT_FALSE(std::filesystem::exists(folder.file("config.json")));
  EXPECT_TRUE(write_config(folder.file("config.yaml"), document));
}

// In a container every run has process id 1.
TEST(ConfigWriter, WhatAKilledRunOfTheSameProcessIdLeftIsNotInItsWay) {
  const ScratchFolder folder;
  const std::string path = folder.file("config.yaml");
  folder.write("config.yaml.new." + std::to_string(::getpid()), "half");

  const auto written = write_config_file(path, "whole");

  ASSERT_TRUE(written) << written.error().what();
  EXPECT_EQ(content_of(path), "whole");
}

// As root, a file in the place of /dev/full would be a file for everybody.
TEST(ConfigWriter, WhatIsNoRegularFileStaysWhatItIs) {
  const ScratchFolder folder;
  const std::string path = folder.file("pipe");
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  const UniqueFd reader(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  std::filesystem::create_symlink("pipe", folder.file("link"));

  for (const std::string name : {"pipe", "link"}) {
    const auto written = write_config_file(folder.file(name), "whole");

    ASSERT_TRUE(written) << written.error().what();
    char text[16] = {};
    EXPECT_EQ(::read(reader.get(), text, sizeof text), 5);
    EXPECT_STREQ(text, "whole");
    EXPECT_TRUE(std::filesystem::is_fifo(path));
  }
  std::filesystem::create_directory(folder.file("folder"));
  EXPECT_FALSE(write_config_file(folder.file("folder"), "whole"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.file("folder")));
}

TEST(ConfigWriter, AFileIsMadeWhereALinkPoints) {
  const ScratchFolder folder;
  std::filesystem::create_directory(folder.file("dotfiles"));
  std::filesystem::create_symlink("dotfiles/second", folder.file("link"));
  std::filesystem::create_symlink(folder.file("file"), folder.file("dotfiles/second"));

  const auto written = write_config_file(folder.file("link"), "whole");

  ASSERT_TRUE(written) << written.error().what();
  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("link")));
  EXPECT_EQ(content_of(folder.file("file")), "whole");
}

TEST(ConfigWriter, LinksInACircleStayAsTheyAre) {
  const ScratchFolder folder;
  std::filesystem::create_symlink("b", folder.file("a"));
  std::filesystem::create_symlink("a", folder.file("b"));

  EXPECT_FALSE(check_place(folder.file("a")));
  EXPECT_FALSE(write_config_file(folder.file("a"), "whole"));

  EXPECT_TRUE(std::filesystem::is_symlink(folder.file("a")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder.path()), {}), 2);
}

TEST(ConfigWriter, APlaceIsCheckedBeforeThereIsAnythingToWrite) {
  const ScratchFolder folder;
  folder.write("file", "");
  for (const std::string good : {"file", "new", "some/folders/new"})
    EXPECT_TRUE(check_place(folder.file(good))) << good;
  EXPECT_TRUE(check_place("/dev/stdout"));
  for (const std::string bad : {"", "file/new", "file/some/folders/new"})
    EXPECT_FALSE(check_place(folder.file(bad))) << bad;
  EXPECT_TRUE(std::filesystem::is_regular_file(folder.file("file")));
}

// PyYAML ends lines at the first three, and refuses the others.
TEST(ConfigWriter, LettersThatYamlDoesNotTakeAsTheyAreAreEscaped) {
  for (const std::string letter :
       {"\xc2\x85", "\xe2\x80\xa8", "\xe2\x80\xa9", "\xc2\x9f", "\xef\xbb\xbf"}) {
    const std::string value = "a" + letter + "b";
    const std::string text = to_text({{"key", 0, {.data = value}}}, ConfigFormat::kYaml);

    EXPECT_EQ(text.find(letter), std::string::npos) << text;
    const auto read = parse_config(text, ConfigFormat::kYaml, "file");
    ASSERT_TRUE(read) << read.error().what();
    EXPECT_EQ(std::get<std::string>(read->front().value.data), value);
  }
  EXPECT_EQ(to_text({{"key", 0, {.data = std::string("gr\xc3\xbc\xc3\x9f")}}}, ConfigFormat::kYaml),
            "key: gr\xc3\xbc\xc3\x9f\n");
}

}  // namespace
}  // namespace accel::launcher::config_writer_test
