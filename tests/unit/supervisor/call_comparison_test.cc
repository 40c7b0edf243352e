#include "runtime/supervisor/watch/call_comparison.h"

#include <memory>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "runtime/supervisor/watch/step_report.h"

namespace accel::supervisor::call_comparison_test {
namespace {

using ::testing::Eq;
using ::testing::HasSubstr;
using ::testing::Optional;

// A rank that made these calls; each is as its text says.
RankCalls rank_of(int rank, const std::vector<std::string>& calls) {
  const auto record = std::make_unique<ChannelCalls>();
  for (const std::string& call : calls) write_call(*record, std::hash<std::string>()(call), call);
  RankCalls read = read_calls(*record).value();
  read.global_rank = rank;
  return read;
}

TEST(CallComparison, RanksThatCalledTheSameDoNotDiffer) {
  const std::vector<std::string> calls(9, "all_reduce sum 4 Float (step)");

  EXPECT_THAT(call_difference({rank_of(0, calls), rank_of(1, calls)}), Eq(std::nullopt));
  EXPECT_THAT(call_difference({rank_of(0, calls)}), Eq(std::nullopt));
  EXPECT_THAT(call_difference({}), Eq(std::nullopt));
}

TEST(CallComparison, TheRankThatCallsSomethingElseIsNamedWithItsCall) {
  const std::vector<std::string> before(7, "all_reduce sum 4 Float (step)");
  std::vector<std::string> usual = before;
  usual.push_back("barrier (end)");
  std::vector<std::string> other = before;
  other.push_back("all_gather 16 Byte (gather)");

  const auto text = call_difference({rank_of(0, usual), rank_of(1, usual), rank_of(2, other)});

  EXPECT_THAT(text,
              Optional(Eq("rank 2 differs from the others at collective call 8: all_gather 16 Byte "
                          "(gather) in place of barrier (end) of rank 0")));
}

TEST(CallComparison, OfTwoRanksTheSecondIsTheOther) {
  EXPECT_THAT(call_difference({rank_of(0, {"a"}), rank_of(1, {"b"})}),
              Optional(Eq("rank 1 differs from the others at collective call 1: b in place of a of "
                          "rank 0")));
}

TEST(CallComparison, ACallThatDifferedEarlierIsFound) {
  EXPECT_THAT(
      call_difference({rank_of(0, {"a", "b", "c", "d"}), rank_of(1, {"a", "x", "c", "d", "e"})}),
      Optional(Eq("rank 1 differs from the others at collective call 2")));
}

TEST(CallComparison, BeyondTheKnownCallsTheFirstOneIsNotKnown) {
  std::vector<std::string> one(20, "a");
  std::vector<std::string> other = one;
  other[3] = "b";

  EXPECT_THAT(call_difference({rank_of(0, one), rank_of(1, other)}),
              Optional(Eq("rank 1 differs from the others at collective call 15 or before it")));
}

TEST(CallComparison, ARankThatIsBehindIsNamed) {
  EXPECT_THAT(call_difference({rank_of(0, {"a", "b", "c"}), rank_of(1, {"a", "b"})}),
              Optional(Eq("rank 1 has begun 2 collective calls, the last one b; rank 0 is in call "
                          "3, c")));
}

TEST(CallComparison, ARecordThatMakesNoSenseIsNotCompared) {
  RankCalls hostile = rank_of(0, {"a"});
  hostile.number = 0;

  EXPECT_THAT(call_difference({hostile, rank_of(1, {"a"})}), Eq(std::nullopt));
}

TEST(CallComparison, RanksThatAreFarApartAreComparedByNumber) {
  const std::vector<std::string> few(2, "a");
  const std::vector<std::string> many(40, "a");

  EXPECT_THAT(call_difference({rank_of(0, many), rank_of(1, few)}),
              Optional(HasSubstr("rank 1 has begun 2 collective calls")));
}

TEST(StepReport, TellsSharesOfTheWholeTime) {
  EXPECT_EQ(
      step_times_text({.steps = 4,
                       .total_ns = 40'000'000,
                       .input_ns = 2'000'000,
                       .communication_ns = 4'000'000,
                       .io_ns = 1'000'000,
                       .wait_ns = 1'000'000}),
      "4 steps of 10.0 ms: compute 80.0 %, exposed communication 10.0 %, input 5.0 %, I/O 2.5 %, "
      "wait 2.5 %");
}

TEST(StepReport, ComputingIsWhatIsLeft) {
  const auto parts = parts_of({.steps = 1, .total_ns = 10, .input_ns = 4, .wait_ns = 1});
  EXPECT_EQ(parts[0].label, "compute");
  EXPECT_EQ(parts[0].nanoseconds, 5);
  EXPECT_EQ(parts[2].nanoseconds, 4);
}

TEST(StepReport, TimesThatMakeNoSenseAreNoReasonToFail) {
  EXPECT_THAT(step_times_text({}), HasSubstr("0 steps of 0.0 ms"));
  EXPECT_THAT(step_times_text({.total_ns = 1, .io_ns = ~std::uint64_t{0}}),
              HasSubstr("compute 0.0 %"));
}

}  // namespace
}  // namespace accel::supervisor::call_comparison_test
