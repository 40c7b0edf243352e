// Which tokens each pass of `accel generate` takes, by hand and for any lengths; when sequences end; what a prompt is.

#include "train/generation/decoding.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/generation/prompts.h"

namespace accel::train::decoding_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Sequence prompt_with(std::size_t length) {
  return {std::vector<std::int64_t>(length, 1), length, {}};
}

// As the program does it, with a model that says 2 always.
void extend(const PlannedCall& call, const StopRule& rule, std::vector<Sequence>& sequences) {
  for (const std::size_t row : call.rows) {
    Sequence& sequence = sequences[row];
    if (sequence.finish || call.begin + call.length < std::ssize(sequence.tokens)) continue;
    sequence.tokens.push_back(2);
    sequence.finish = rule.finish_of(sequence);
  }
}

struct Spent {
  std::int64_t passes = 0;
  std::int64_t calls = 0;
};

Spent run(std::vector<Sequence>& sequences,
          const ModelShape& shape,
          std::int64_t at_once,
          std::int64_t new_tokens) {
  const StopRule rule{.max_new_tokens = new_tokens};
  PassPlanner planner(sequences, shape, at_once, 0);
  Spent spent;
  for (auto calls = planner.next(); !calls.empty(); calls = planner.next()) {
    ++spent.passes;
    spent.calls += std::ssize(calls);
    for (const PlannedCall& call : calls) extend(call, rule, sequences);
  }
  return spent;
}

TEST(PassPlanner, ReadsAPromptAtOnceAndThenTokenByToken) {
  std::vector<Sequence> sequences = {prompt_with(5)};
  PassPlanner planner(sequences, {.has_cache = true, .rows = 1, .places = 64}, 8, 0);
  const StopRule rule{.max_new_tokens = 3};
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (auto calls = planner.next(); !calls.empty(); calls = planner.next()) {
    ASSERT_THAT(calls, SizeIs(1));
    taken.emplace_back(calls[0].begin, calls[0].length);
    extend(calls[0], rule, sequences);
  }
  EXPECT_THAT(taken, ElementsAre(std::pair(0, 5), std::pair(5, 1), std::pair(6, 1)));
}

TEST(PassPlanner, RowsOfOneCacheGrowWhileLongerPromptsAreRead) {
  std::vector<Sequence> sequences = {prompt_with(7), prompt_with(3)};
  PassPlanner planner(sequences, {.has_cache = true, .rows = 2, .places = 64}, 8, 0);
  const StopRule rule{.max_new_tokens = 2};
  std::vector<std::pair<std::int64_t, std::int64_t>> taken;
  for (auto calls = planner.next(); !calls.empty(); calls = planner.next()) {
    taken.emplace_back(calls[0].begin, calls[0].length);
    extend(calls[0], rule, sequences);
  }
  // Three of both; one for the shorter, which then is finished; the rest of the longer, and its second token.
  EXPECT_THAT(taken,
              ElementsAre(std::pair(0, 3), std::pair(3, 1), std::pair(4, 3), std::pair(7, 1)));
}

TEST(PassPlanner, TakesNoMoreTokensThanTheModelAndTheUserAllow) {
  std::vector<Sequence> sequences = {prompt_with(5)};
  PassPlanner single(sequences, {.has_cache = true, .rows = 1, .tokens = 1}, 8, 0);
  EXPECT_EQ(single.next()[0].length, 1);
  PassPlanner chunked(sequences, {.has_cache = true, .rows = 1}, 8, 4);
  EXPECT_EQ(chunked.next()[0].length, 4);
  EXPECT_EQ(chunked.next()[0].length, 1);
}

TEST(PassPlanner, RunsPromptsSideBySideAndTakesTheNextWhenOneIsFinished) {
  std::vector<Sequence> sequences;
  for (int i = 0; i < 10; ++i) sequences.push_back(prompt_with(4));
  const Spent together = run(sequences, {.has_cache = true, .rows = 1}, 5, 6);
  EXPECT_EQ(together.passes, 12);
  EXPECT_EQ(together.calls, 60);
}

TEST(PassPlanner, WithoutACacheACallHasSequencesOfOneLength) {
  std::vector<Sequence> sequences = {prompt_with(4), prompt_with(2), prompt_with(4)};
  PassPlanner planner(sequences, {}, 8, 0);
  const auto calls = planner.next();
  ASSERT_THAT(calls, SizeIs(2));
  EXPECT_THAT(calls[0].rows, ElementsAre(1u));
  EXPECT_EQ(calls[0].length, 2);
  EXPECT_THAT(calls[1].rows, ElementsAre(0u, 2u));
  EXPECT_EQ(calls[1].length, 4);
  PassPlanner two(sequences, {}, 2, 0);
  EXPECT_THAT(two.next(), SizeIs(2));
}

TEST(PassPlanner, CompletesEachSequenceOfAnyLengthsWithNoMoreCallsThanAlone) {
  std::uint32_t draw = 7;
  const auto below = [&](std::uint32_t limit) {
    draw = draw * 1664525U + 1013904223U;
    return (draw >> 16) % limit;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<Sequence> sequences;
    for (std::uint32_t i = 0, count = 1 + below(9); i < count; ++i)
      sequences.push_back(prompt_with(1 + below(20)));
    const auto rows = static_cast<std::int64_t>(1 + below(4));
    const auto new_tokens = static_cast<std::int64_t>(1 + below(9));
    const Spent spent = run(sequences, {.has_cache = true, .rows = rows}, 8, new_tokens);
    EXPECT_LE(spent.calls, std::ssize(sequences) * new_tokens);
    for (const Sequence& sequence : sequences) {
      EXPECT_EQ(sequence.finish, Finish::kLength);
      EXPECT_EQ(std::ssize(sequence.generated()), new_tokens);
    }
  }
}

TEST(MostLanes, AreThoseThatTheSequencesFillAndTheUserAllows) {
  EXPECT_EQ(most_lanes(1, 8, 1), 1);
  EXPECT_EQ(most_lanes(20, 8, 1), 8);
  EXPECT_EQ(most_lanes(5, 8, 2), 3);
  EXPECT_EQ(most_lanes(5, 5, 2), 2);
  EXPECT_EQ(most_lanes(5, 1, 4), 1);
  EXPECT_EQ(most_lanes(3, 1'000'000'000, 1), 3);
}

TEST(BytesForWeights, AreWhatTheCachesLeave) {
  EXPECT_EQ(bytes_for_weights(1000, 1, 100), 800);
  EXPECT_EQ(bytes_for_weights(1000, 8, 100), 100);
  EXPECT_EQ(bytes_for_weights(1000, 10, 100), 0);
  EXPECT_EQ(bytes_for_weights(std::int64_t{1} << 40, 1'000'000'000, std::int64_t{1} << 36), 0);
}

TEST(StopRule, EndsAtAnEndTokenAtTheLengthOrWhereTheCacheIsFull) {
  Sequence sequence{{1, 1, 1, 5}, 3, {}};
  EXPECT_EQ(StopRule({.max_new_tokens = 4, .end_tokens = {9, 5}}).finish_of(sequence),
            Finish::kEndToken);
  EXPECT_EQ(StopRule({.max_new_tokens = 1}).finish_of(sequence), Finish::kLength);
  EXPECT_EQ(StopRule({.max_new_tokens = 4, .places = 4}).finish_of(sequence), Finish::kFullCache);
  EXPECT_EQ(StopRule({.max_new_tokens = 4, .places = 5}).finish_of(sequence), std::nullopt);
  EXPECT_EQ(StopRule({.max_new_tokens = 4, .end_tokens = {1}}).finish_of(sequence), std::nullopt);
}

TEST(Prompts, AreNumbersWithCommasOrBlanksBetween) {
  EXPECT_THAT(*prompt_of("1,2, 3", "prompt 1"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*prompt_of(" 7 8\r", "prompt 1"), ElementsAre(7, 8));
  const auto long_word = prompt_of("1," + std::string(1'000'000, 'x'), "prompt 1");
  ASSERT_FALSE(long_word);
  EXPECT_LT(long_word.error().message().size(), 200u);
  EXPECT_THAT(long_word.error().message(), HasSubstr("xxx..."));
  for (const std::string text : {"", " , ", "1,x", "-1", "1.5", "99999999999999999999"}) {
    const auto prompt = prompt_of(text, "prompt 4");
    ASSERT_FALSE(prompt) << text;
    EXPECT_EQ(prompt.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(prompt.error().message(), HasSubstr("prompt 4"));
  }
}

}  // namespace
}  // namespace accel::train::decoding_test
