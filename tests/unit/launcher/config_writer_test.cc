#include "launcher/config_writer.h"

#include <filesystem>
#include <fstream>
#include <iterator>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/unique_fd.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher {
namespace {

using test::ScratchFolder;

// In a container every run has process id 1.
TEST(ConfigWriter, WhatAKilledRunOfTheSameProcessIdLeftIsNotInItsWay) {
  const ScratchFolder folder;
  const std::string path = folder.file("config.yaml");
  folder.write("config.yaml.new." + std::to_string(::getpid()), "half");

  const auto written = write_config_file(path, "whole");

  ASSERT_TRUE(written) << written.error().what();
  std::ifstream file(path);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), "whole");
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
}  // namespace accel::launcher
