// The index of a model in several files: written, read, and what no index is.

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/safetensors_index.h>

#include "tests/support/scratch_folder.h"

namespace accel::safetensors::index_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(SafetensorsIndex, WhatWasWrittenIsRead) {
  const test::ScratchFolder folder;
  const auto path = folder.path() / kModelIndexName;
  const WeightMap files = {
      {"a", "one.safetensors"}, {"b", "two.safetensors"}, {"c", "one.safetensors"}};

  or_throw(write_index(path, files, 96));

  EXPECT_EQ(or_throw(files_by_tensor(path)), files);
  EXPECT_THAT(or_throw(files_of_index(path)), ElementsAre("one.safetensors", "two.safetensors"));
  EXPECT_THAT(or_throw(index_text(files, 96)), HasSubstr("\"total_size\": 96"));
}

TEST(SafetensorsIndex, AFileOutsideOfItsFolderIsRefused) {
  const test::ScratchFolder folder;
  const auto path = folder.path() / "model.safetensors.index.json";
  std::ofstream(path) << R"({"weight_map": {"a": "../one.safetensors"}})";
  const auto files = files_by_tensor(path);
  ASSERT_FALSE(files);
  EXPECT_EQ(files.error().code(), ErrorCode::kConfigInvalidValue);
  EXPECT_THAT(files.error().message(), HasSubstr("the file of a is no name of a file beside it"));
}

TEST(SafetensorsIndex, NamesThatAreNotUtf8AreRefused) {
  EXPECT_EQ(index_text({{"\xff", "one.safetensors"}}, 1).error().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace accel::safetensors::index_test
