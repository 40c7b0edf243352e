#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <sstream>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/channel_layout.h>

namespace accel::channel_layout_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ChannelLayoutTest : public ::testing::Test {
 protected:
  std::unique_ptr<ChannelLayout> page_ = std::make_unique<ChannelLayout>();
};

TEST_F(ChannelLayoutTest, AHeartbeatComesBackWithItsCount) {
  EXPECT_FALSE(read_heartbeat(page_->slot));

  write_heartbeat(page_->slot, {.step = 3, .samples = 96, .phase = WorkerPhase::kTraining}, 1000);
  write_heartbeat(page_->slot, {.step = 4, .samples = 128, .phase = WorkerPhase::kSaving}, 2000);

  const auto sample = read_heartbeat(page_->slot);
  ASSERT_TRUE(sample);
  EXPECT_EQ(sample->beats, 2u);
  EXPECT_EQ(sample->beat.step, 4u);
  EXPECT_EQ(sample->beat.samples, 128u);
  EXPECT_EQ(sample->beat.phase, WorkerPhase::kSaving);
  EXPECT_EQ(sample->monotonic_ns, 2000u);
}

TEST_F(ChannelLayoutTest, AReaderNeverSeesHalfAHeartbeat) {
  constexpr std::uint64_t kBeats = 200'000;
  std::jthread writer([&] {
    for (std::uint64_t i = 1; i <= kBeats; ++i) {
      write_heartbeat(page_->slot, {.step = i, .samples = 2 * i}, 3 * i);
    }
  });

  std::uint64_t last = 0;
  while (last < kBeats) {
    const auto sample = read_heartbeat(page_->slot);
    if (!sample) continue;
    ASSERT_EQ(sample->beat.samples, 2 * sample->beat.step);
    ASSERT_EQ(sample->monotonic_ns, 3 * sample->beat.step);
    ASSERT_EQ(sample->beats, sample->beat.step);
    last = sample->beat.step;
  }
}

TEST_F(ChannelLayoutTest, TimesComeBackAsTheyWereWritten) {
  EXPECT_FALSE(read_times(page_->times));
  const StepTimes times = {
      .steps = 1, .total_ns = 2, .input_ns = 3, .communication_ns = 4, .io_ns = 5, .wait_ns = 6};

  write_times(page_->times, {});
  write_times(page_->times, times);

  EXPECT_EQ(read_times(page_->times), times);
}

TEST_F(ChannelLayoutTest, CallsAreKnownByTheirHashesUpToTheLastSix) {
  EXPECT_FALSE(read_calls(page_->calls));
  for (std::uint64_t call = 1; call <= 3; ++call) write_call(page_->calls, call, "a call");
  const auto three = read_calls(page_->calls);
  for (std::uint64_t call = 4; call <= 8; ++call) write_call(page_->calls, call, "the\nlast");
  const auto eight = read_calls(page_->calls);

  ASSERT_TRUE(three && eight);
  EXPECT_EQ(three->number, 3u);
  EXPECT_EQ(three->hashes.size(), 3u);
  EXPECT_EQ(eight->number, 8u);
  ASSERT_EQ(eight->hashes.size(), 6u);
  EXPECT_EQ(eight->hashes[5], three->hashes[0]);  // up to call 3
  EXPECT_EQ(eight->text.find('\n'), std::string::npos);
}

TEST_F(ChannelLayoutTest, LengthsOfCallsThatLieAreCutOff) {
  write_call(page_->calls, 1, "x");
  page_->calls.length.store(~std::uint64_t{0});

  EXPECT_LE(read_calls(page_->calls)->text.size(), 4 * kChannelCallWords * 8);
}

TEST_F(ChannelLayoutTest, TheLastErrorWins) {
  write_error(page_->error, "a long first error that is replaced", 1);
  write_error(page_->error, "second", 2);

  const auto error = read_error(page_->error);

  ASSERT_TRUE(error);
  ASSERT_TRUE(*error);
  EXPECT_EQ((*error)->text, "second");
  EXPECT_EQ((*error)->monotonic_ns, 2u);
}

TEST_F(ChannelLayoutTest, AnErrorThatIsTooLongIsCutOff) {
  write_error(page_->error, std::string(10'000, 'x'), 1);

  EXPECT_EQ((*read_error(page_->error))->text, std::string(3816, 'x'));
}

TEST_F(ChannelLayoutTest, AnErrorIsMadePrintable) {
  write_error(page_->error, "\x1B[31mred", 1);

  EXPECT_EQ((*read_error(page_->error))->text, "?[31mred");
}

TEST_F(ChannelLayoutTest, AnErrorThatWasNeverFinishedIsNone) {
  write_error(page_->error, "whole", 1);
  page_->error.sequence.store(3);  // died while it wrote the second one

  const auto error = read_error(page_->error);

  ASSERT_TRUE(error);
  EXPECT_FALSE(*error);
}

TEST_F(ChannelLayoutTest, AnErrorWithALyingLengthIsCorrupt) {
  write_error(page_->error, "text", 1);
  page_->error.length.store(~std::uint64_t{0});

  const auto error = read_error(page_->error);

  ASSERT_FALSE(error);
  EXPECT_EQ(error.error().code(), ErrorCode::kChannelCorrupt);
}

TEST_F(ChannelLayoutTest, NoticesComeInOrderAndOnce) {
  write_notice(*page_, "one", 1);
  write_notice(*page_, "two", 2);

  const NoticesRead first = read_notices(*page_, 0);
  write_notice(*page_, "three", 3);
  const NoticesRead second = read_notices(*page_, first.next);

  EXPECT_THAT(first.texts, ElementsAre("one", "two"));
  EXPECT_THAT(second.texts, ElementsAre("three"));
  EXPECT_THAT(read_notices(*page_, second.next).texts, IsEmpty());
}

TEST_F(ChannelLayoutTest, OnlyTheLastNoticesAreKept) {
  for (int i = 0; i < 100; ++i) write_notice(*page_, "notice " + std::to_string(i), 1);

  const NoticesRead read = read_notices(*page_, 0);

  ASSERT_EQ(read.texts.size(), kChannelNotices);
  EXPECT_EQ(read.texts.front(), "notice 85");
  EXPECT_EQ(read.next, 100u);
}

TEST_F(ChannelLayoutTest, RandomBytesAreSurvived) {
  std::mt19937_64 random(20261121);
  for (int round = 0; round < 2000; ++round) {
    auto* words = reinterpret_cast<std::uint64_t*>(page_.get());
    for (std::size_t i = 0; i < kChannelBytes / 8; ++i) {
      words[i] = random() >> (random() % 64);  // small numbers as often as large ones
    }

    const auto beat = read_heartbeat(page_->slot);
    const auto error = read_error(page_->error);
    const NoticesRead notices = read_notices(*page_, random());

    EXPECT_LE(notices.texts.size(), kChannelNotices);
    if (error && *error) {
      EXPECT_LE((*error)->text.size(), 3816u);
    }
    if (beat) {
      EXPECT_LE(beat->beat.phase, WorkerPhase::kFinishing);
    }
  }
}

// The rows of the table in docs/internals/worker_channel.md are those of the code.
TEST(ChannelParts, AreDocumented) {
  const char* source_dir = std::getenv("ACCEL_SOURCE_DIR");
  std::ifstream file(std::string(source_dir != nullptr ? source_dir : ".") +
                     "/docs/internals/worker_channel.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};

  for (const ChannelPart& part : channel_parts()) {
    std::ostringstream row;
    row << "| " << part.offset << " | " << part.bytes << " | " << part.name << " | " << part.writer
        << " |";
    EXPECT_THAT(page, ::testing::HasSubstr(row.str()));
  }
}

TEST(ChannelParts, FillThePageWithoutGapOrOverlap) {
  std::size_t end = 0;
  for (const ChannelPart& part : channel_parts()) {
    EXPECT_EQ(part.offset, end) << part.name;
    end = part.offset + part.bytes;
  }
  EXPECT_EQ(end, kChannelBytes);
}

TEST(ChannelLayout, BeginsWithItsMagicAsText) {
  char text[9] = {};
  std::memcpy(text, &kChannelMagic, 8);
  EXPECT_STREQ(text, "ACCLCHN1");
}

}  // namespace
}  // namespace accel::channel_layout_test
