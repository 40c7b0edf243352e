#include "runtime/channel_frames.h"

#include <cstring>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::channel_frames_test {
namespace {

using ::testing::HasSubstr;

template <typename Body>
Body round_trip(Body body) {
  const std::string bytes = std::move(encode_channel_frame({77, std::move(body)})).value();
  const ChannelFrame frame = std::move(decode_channel_frame(bytes)).value();
  EXPECT_EQ(frame.id, 77u);
  return std::get<Body>(frame.body);
}

TEST(ChannelFrames, ComeBackAsTheyWere) {
  const auto shared = round_trip(GetSharedFrame{1 << 20, Keep::kJob, "gradients"});
  EXPECT_EQ(shared.bytes, 1u << 20);
  EXPECT_EQ(shared.keep, Keep::kJob);
  EXPECT_EQ(shared.name, "gradients");

  const auto commit = round_trip(CommitFrame{1234, "/ckpt/step_1234", "xxh3:0123"});
  EXPECT_EQ(commit.step, 1234u);
  EXPECT_EQ(commit.path, "/ckpt/step_1234");
  EXPECT_EQ(commit.digest, "xxh3:0123");

  EXPECT_EQ(round_trip(ReportFrame{"loss 0.25"}).text, "loss 0.25");
  (void)round_trip(ByeFrame{});
  EXPECT_EQ(round_trip(DropSharedFrame{"gradients"}).name, "gradients");

  const auto reply = round_trip(ReplyFrame{ChannelStatus::kQuota, "too much"});
  EXPECT_EQ(reply.status, ChannelStatus::kQuota);
  EXPECT_EQ(reply.text, "too much");
}

TEST(ChannelFrames, AreRefusedWhenTheyWouldBeTooLong) {
  const Result<std::string> bytes = encode_channel_frame({1, ReportFrame{std::string(4096, 'x')}});

  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(bytes.error().message(), HasSubstr("4080"));
}

TEST(ChannelFrames, OfEverySizeAreSurvived) {
  std::mt19937_64 random(7);
  for (std::size_t size = 0; size <= kMaxChannelFrame + 64; ++size) {
    std::string bytes(size, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    if (size >= 8) {  // a header that is right, so that the payload is read
      const std::uint32_t head[2] = {static_cast<std::uint32_t>(1 + random() % 5),
                                     static_cast<std::uint32_t>(size - 16)};
      std::memcpy(bytes.data(), head, sizeof(head));
    }
    (void)decode_channel_frame(bytes);
  }
}

TEST(ChannelFrames, WithALyingLengthAreRefused) {
  const std::string good = std::move(encode_channel_frame({1, ReportFrame{"text"}})).value();
  for (const std::size_t at : {4u, 16u}) {  // of the payload, of the text
    for (const std::uint32_t lie : {0u, 3u, 5u, 4096u, ~0u}) {
      std::string bytes = good;
      std::memcpy(bytes.data() + at, &lie, sizeof(lie));
      EXPECT_FALSE(decode_channel_frame(bytes)) << at << " " << lie;
    }
  }
}

TEST(ChannelFrames, WithBytesBehindTheLastFieldAreRefused) {
  std::string bytes = std::move(encode_channel_frame({1, ByeFrame{}})).value() + "x";
  const std::uint32_t payload = 1;
  std::memcpy(bytes.data() + 4, &payload, sizeof(payload));

  EXPECT_FALSE(decode_channel_frame(bytes));
}

TEST(ChannelFrames, OfUnknownTypeAreRefusedByNumber) {
  std::string bytes = std::move(encode_channel_frame({1, ByeFrame{}})).value();
  bytes[0] = 99;

  const Result<ChannelFrame> frame = decode_channel_frame(bytes);

  ASSERT_FALSE(frame);
  EXPECT_THAT(frame.error().message(), HasSubstr("99"));
}

TEST(SharedName, IsAShortPlainWord) {
  EXPECT_TRUE(is_shared_name("group.0_grad-A"));
  EXPECT_FALSE(is_shared_name(""));
  EXPECT_FALSE(is_shared_name("a/b"));
  EXPECT_FALSE(is_shared_name(std::string(129, 'a')));
}

}  // namespace
}  // namespace accel::channel_frames_test
