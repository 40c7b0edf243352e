// What ranks of a node have divided, put together of their images.

#include "libaccel/engine/checkpoint/memory/memory_image.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::checkpoint::memory_image_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFile = "model.safetensors";
constexpr std::int64_t kNumel = 8;

// Elements [begin, end) of a tensor.
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// A slot with the image of a rank that has these ranges of 0, 1, 2 ...
class RankImage {
 public:
  explicit RankImage(const std::vector<Range>& ranges) {
    const at::Tensor whole = at::arange(kNumel, at::kFloat);
    SharedTensor tensor{
        .spec = {.name = "weight", .shape = {kNumel}}, .parts = {}, .is_divided = true};
    for (const Range& range : ranges)
      tensor.parts.push_back(
          {range.begin, whole.narrow(0, range.begin, range.end - range.begin).clone()});
    SaveContent content;
    content.shared.emplace_back(kFile, std::vector{std::move(tensor)}, safetensors::Metadata{});
    const MemoryImage image(content, Manifest{}, DiskMark{});
    slot_.resize(kSlotHeaderBytes + image.bytes());
    SlotWriter writer(slot_);
    image.write(writer);
    writer.complete({});
  }

  [[nodiscard]] std::span<const std::byte> bytes() const { return read_slot(slot_)->content; }

 private:
  std::vector<std::byte> slot_;
};

at::Tensor whole_of(const RankImage& own, const std::vector<const RankImage*>& others) {
  std::vector<std::span<const std::byte>> contents;
  for (const RankImage* other : others) contents.push_back(other->bytes());
  MemorySource source(own.bytes(), own.bytes(), std::move(contents));
  return source
      .parts(
          kFile, [](const auto&) { return std::nullopt; }, checkpoint::LoadedMemory::kOwn)
      .tensors.at("weight");
}

void expect_refused(const RankImage& own, const std::vector<const RankImage*>& others) {
  try {
    std::ignore = whole_of(own, others);
    ADD_FAILURE() << "put together";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCheckpointMismatch);
    EXPECT_THAT(error.message(), HasSubstr("has other parts of weight"));
  }
}

TEST(MemorySource, PutsPartsOfAllRanksTogetherInAnyOrder) {
  const RankImage first({{0, 2}, {6, 8}});
  const RankImage second({{5, 6}, {2, 5}});
  const RankImage third({{4, 4}});
  EXPECT_TRUE(whole_of(second, {&third, &first}).equal(at::arange(kNumel, at::kFloat)));
}

TEST(MemorySource, RefusesATensorOfWhichTheNodeHasNotEveryElementOnce) {
  const RankImage half({{0, 4}});
  const RankImage middle({{2, 6}});
  expect_refused(half, {});
  expect_refused(half, {&half});    // as many bytes as the tensor has
  expect_refused(half, {&middle});  // and so here
}

}  // namespace
}  // namespace accel::checkpoint::memory_image_test
