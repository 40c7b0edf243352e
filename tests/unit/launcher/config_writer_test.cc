#include "launcher/config_writer.h"

#include <fstream>
#include <iterator>

#include <gtest/gtest.h>
#include <unistd.h>

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

}  // namespace
}  // namespace accel::launcher
