// Metadata that describes more than its bytes are worth: one value named many times over. What is damaged in other ways:
// distcp_merge_test.cc; what PyTorch writes: tests/peer/merge_weights.py.

#include "checkpoint_tools/merge/distcp_metadata.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/peak_memory.h"
#include "tests/unit/checkpoint_tools/saved_archive.h"

namespace accel::launcher::distcp_metadata_test {
namespace {

using namespace accel::test;
using ::testing::HasSubstr;

constexpr int kMany = 2500;  // their square is too many
constexpr std::int64_t kLittle = 64 << 20;

using Pairs = std::vector<std::pair<std::string, std::string>>;

// `ops`, remembered as number `memo`; then remembered(memo) is the same value.
std::string remember(const std::string& ops, int memo) {
  return ops + "r" + little(memo, 4);
}
std::string remembered(int memo) {
  return "j" + little(memo, 4);
}

std::string metadata_of(const Pairs& states, const std::string& paths, const Pairs& storage) {
  return pickle_of(object_op(metadata_name("Metadata"),
                             dict_op({{text_op("state_dict_metadata"), dict_op(states)},
                                      {text_op("planner_data"), paths},
                                      {text_op("storage_data"), dict_op(storage)}})));
}

void expect_too_much(const std::string& bytes) {
  const PeakMemory peak;
  const auto metadata = parse_distcp_metadata(bytes);
  const std::int64_t growth = peak.growth_bytes();

  ASSERT_FALSE(metadata);
  EXPECT_EQ(metadata.error().code(), ErrorCode::kCheckpointIncomplete);
  EXPECT_THAT(metadata.error().message(), HasSubstr("name the same values over and over"));
  if (PeakMemory::is_the_programs_own()) {
    EXPECT_LE(growth, kLittle);
  }
}

TensorOps empty_tensor(const std::string& name, int chunks) {
  return tensor_ops(name, {0}, std::vector<SavedChunk>(chunks, {{0}, {0}, ""}), "file", 0);
}

TEST(DistcpMetadata, OneListOfChunksIsNotThatOfManyTensors) {
  TensorOps first = empty_tensor("0", kMany);
  Pairs states = {{text_op("0"), remember(first.state, 20)}};
  Pairs storage;
  for (int i = 1; i < kMany; ++i) states.emplace_back(text_op(std::to_string(i)), remembered(20));
  for (int i = 0; i < kMany; ++i)
    storage.push_back(empty_tensor(std::to_string(i), 1).storage.front());
  expect_too_much(metadata_of(states, "N", storage));
}

TEST(DistcpMetadata, OnePathIsNotThatOfManyNames) {
  const std::string path = tuple_op(std::vector<std::string>(kMany, text_op("step")));
  Pairs paths = {{text_op("0"), remember(path, 1)}};
  for (int i = 1; i < kMany; ++i) paths.emplace_back(text_op(std::to_string(i)), remembered(1));
  expect_too_much(metadata_of({}, dict_op(paths), {}));
}

// What real metadata describes is within the bounds.
TEST(DistcpMetadata, AsManyChunksAsBytesAreRead) {
  constexpr std::uint64_t kChunks = 40'000;
  std::vector<SavedChunk> chunks;
  for (std::uint64_t i = 0; i < kChunks; ++i) chunks.push_back({{i, 0}, {1, 2}, "archive"});
  const std::string bytes =
      metadata_pickle("w", tensor_ops("w", {kChunks, 2}, chunks, "__0_0.distcp", 0));

  const PeakMemory peak;
  const auto metadata = parse_distcp_metadata(bytes);

  ASSERT_TRUE(metadata) << metadata.error().what();
  ASSERT_EQ(metadata->tensors.size(), 1);
  EXPECT_EQ(metadata->tensors[0].chunks.size(), kChunks);
  EXPECT_EQ(metadata->tensors[0].chunks[7].begin, 7 * std::string("archive").size());
  if (PeakMemory::is_the_programs_own()) {
    EXPECT_LE(peak.growth_bytes(), 8 * static_cast<std::int64_t>(bytes.size()));
  }
}

}  // namespace
}  // namespace accel::launcher::distcp_metadata_test
