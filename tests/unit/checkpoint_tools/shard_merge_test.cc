// Sharded safetensors put together. Those of Python: tests/peer/merge_weights.py.

#include "checkpoint_tools/merge/shard_merge.h"

#include <fstream>
#include <iterator>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/safetensors.h>

#include "tests/support/faulty_disk.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::shard_merge_test {
namespace {

namespace fs = std::filesystem;
using test::FaultyDisk;
using test::ScratchFolder;
using ::testing::HasSubstr;

// A file with one tensor of bytes.
std::string file_of(const std::string& name,
                    const std::string& data,
                    const std::map<std::string, std::string>& metadata = {{"format", "pt"}}) {
  const auto layout =
      safetensors::plan_layout({{name, safetensors::Dtype::kU8, {data.size()}}}, metadata);
  return layout ? layout->bytes + data : "";
}

std::string message_of(const ScratchFolder& folder) {
  FaultyDisk disk;
  const auto count = merge_shards(
      folder.path(), folder.file("out/model.safetensors"), WeightsFormat::kSafetensors, disk);
  return count ? "no error" : count.error().message();
}

constexpr const char* kIndex =
    R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})";

TEST(ShardMerge, TensorsOfAllFilesAreInOneWithTheirMetadata) {
  const ScratchFolder folder;
  folder.write("model.safetensors.index.json", kIndex);
  folder.write("one.safetensors", file_of("a", "first", {{"tied", "a"}}));
  folder.write("two.safetensors", file_of("b", "2nd"));

  ASSERT_EQ(message_of(folder), "no error");

  const auto expected = safetensors::plan_layout(
      {{"a", safetensors::Dtype::kU8, {5}}, {"b", safetensors::Dtype::kU8, {3}}},
      {{"format", "pt"}, {"tied", "a"}});
  ASSERT_TRUE(expected);
  std::ifstream file(folder.file("out/model.safetensors"), std::ios::binary);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(file), {}), expected->bytes + "first2nd");
}

TEST(ShardMerge, WhatDoesNotFitTogetherIsRefused) {
  const ScratchFolder folder;
  folder.write("model.safetensors.index.json", kIndex);
  folder.write("one.safetensors", file_of("a", "first"));
  EXPECT_THAT(message_of(folder), HasSubstr("two.safetensors, which the index names"));
  folder.write("two.safetensors", file_of("a", "again"));
  EXPECT_THAT(message_of(folder), HasSubstr("a is in two files of the index"));
  folder.write("two.safetensors", "no header");
  EXPECT_NE(message_of(folder), "no error");
  folder.write("model.safetensors.index.json", R"({"weight_map": {"a": "../one.safetensors"}})");
  EXPECT_THAT(message_of(folder), HasSubstr("no name of a file beside it"));
  EXPECT_FALSE(fs::exists(folder.file("out")));
}

TEST(ShardMerge, TheIndexAndTheFilesHaveTheSameTensors) {
  const ScratchFolder folder;
  folder.write("model.safetensors.index.json", kIndex);
  folder.write("one.safetensors", file_of("a", "first"));
  folder.write("two.safetensors", file_of("c", "2nd"));
  EXPECT_THAT(message_of(folder), HasSubstr("c is in " + folder.file("two.safetensors")));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors",
                                  "c": "two.safetensors"}})");
  EXPECT_THAT(message_of(folder), HasSubstr("b is not in " + folder.file("two.safetensors")));
  folder.write("model.safetensors.index.json",
               R"({"weight_map": {"a": "two.safetensors", "c": "one.safetensors"}})");
  EXPECT_THAT(message_of(folder), HasSubstr("a is in " + folder.file("one.safetensors")));
  EXPECT_FALSE(fs::exists(folder.file("out")));
}

}  // namespace
}  // namespace accel::launcher::shard_merge_test
