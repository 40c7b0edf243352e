#include "runtime/supervisor/protocol/short_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::short_frame_test {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

constexpr std::size_t kMost = kMaxFrameBytes;

// As long as a tail gets, of the byte that needs most room in a frame.
WorkerExit talkative(int rank) {
  WorkerExit exit = {.global_rank = rank, .cause = ExitCause::kNonZero, .exit_code = 3};
  exit.tail = std::string(64 * 1024, '\x01') + "the last words";
  exit.error_file = std::string(32 * 1024, 'e');
  return exit;
}

template <typename T>
T shortened(const T& event) {
  const auto frame = short_frame(event, kMost, "see `ulimit -f`");
  EXPECT_TRUE(frame);
  if (!frame) return {};
  EXPECT_LE(frame->size(), kMost);
  auto decoded = decode_event(*frame);
  EXPECT_TRUE(decoded);
  return decoded ? std::get<T>(*std::move(decoded)) : T{};
}

TEST(ShortFrame, AnOutcomeKeepsItsCodesAndTheLastWordsOfTheFirstFailure) {
  JobOutcome outcome = {.exit_code = 3, .reason = "failed", .first_failure = talkative(1)};
  for (int rank = 0; rank < 8; ++rank) outcome.exits.push_back(talkative(rank));
  const JobOutcome back = shortened(outcome);

  EXPECT_EQ(back.exit_code, 3);
  ASSERT_TRUE(back.first_failure);
  EXPECT_EQ(back.first_failure->global_rank, 1);
  EXPECT_THAT(back.first_failure->tail, EndsWith("the last words"));
  EXPECT_EQ(back.first_failure->error_file, "");
  ASSERT_EQ(back.exits.size(), 8u);
  EXPECT_EQ(back.exits.back().exit_code, 3);
  ASSERT_EQ(back.notices.size(), 1u);
  EXPECT_THAT(back.notices.front(), HasSubstr("ulimit -f"));
}

TEST(ShortFrame, AThousandTalkativeWorkersFitIntoAPayloadWithTheLastWordsOfEach) {
  JobOutcome outcome = {.exit_code = 3, .reason = "failed", .first_failure = talkative(1)};
  for (int rank = 0; rank < 1024; ++rank) outcome.exits.push_back(talkative(rank));
  ASSERT_GT(text_bytes(outcome), kMaxPayloadBytes);

  const auto frame = short_frame(outcome, kMaxPayloadBytes, "it is long");

  ASSERT_TRUE(frame);
  EXPECT_LE(frame->size(), kMaxPayloadBytes);
  const auto decoded = decode_event(*frame);
  ASSERT_TRUE(decoded);
  const auto& back = std::get<JobOutcome>(*decoded);
  ASSERT_EQ(back.exits.size(), 1024U);
  for (const WorkerExit& exit : back.exits) EXPECT_THAT(exit.tail, EndsWith("the last words"));
  EXPECT_THAT(back.notices.front(), EndsWith("told in part only: it is long"));
}

TEST(ShortFrame, EveryEventWithTextsIsShortened) {
  EXPECT_EQ(shortened(talkative(2)).global_rank, 2);
  EXPECT_EQ(shortened(Restarting{.next_generation = 4, .because = talkative(2)}).next_generation,
            4);
  EXPECT_EQ(shortened(Notice{std::string(kMost, 'x')}).text.substr(0, 3), "xxx");
  GenerationEnded ended = {.generation = 5};
  ended.outcome.exits = {talkative(0), talkative(1)};
  EXPECT_EQ(shortened(ended).generation, 5);
}

TEST(ShortFrame, AnEventThatIsLongWithoutTextsHasNone) {
  GenerationStarted started;
  started.pids.assign(kMost, 1);
  EXPECT_FALSE(short_frame(started, kMost, ""));
}

}  // namespace
}  // namespace accel::supervisor::short_frame_test
