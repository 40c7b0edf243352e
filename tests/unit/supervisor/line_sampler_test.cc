#include "runtime/supervisor/lines/line_sampler.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::line_sampler_test {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr TimePoint kNow{1h};

class LineSamplerTest : public ::testing::Test {
 protected:
  void feed(std::string_view bytes) {
    sampler_.feed(
        bytes,
        [this](std::string_view line) {
          if (room_ == 0) return false;
          --room_;
          kept_.emplace_back(line);
          return true;
        },
        [this](std::size_t lost) { lost_ += lost; });
  }

  // Lines "first\n" to "last\n".
  static std::string numbers(int first, int last) {
    std::string text;
    for (int i = first; i <= last; ++i) text += std::to_string(i) + "\n";
    return text;
  }

  LineSampler sampler_;
  std::vector<std::string> kept_;
  int room_ = 1'000'000;  // lines that the sink takes
  std::size_t lost_ = 0;
};

TEST_F(LineSamplerTest, OneLineOfSixteenStays) {
  sampler_.begin(kNow);
  feed(numbers(0, 63));

  EXPECT_THAT(kept_, ElementsAre("16\n", "32\n", "48\n"));
  EXPECT_EQ(lost_, numbers(0, 63).size() - 9);
}

TEST_F(LineSamplerTest, HowTheBytesAreCutMakesNoDifference) {
  sampler_.begin(kNow);
  for (const char byte : numbers(0, 63)) feed({&byte, 1});

  EXPECT_THAT(kept_, ElementsAre("16\n", "32\n", "48\n"));
  EXPECT_EQ(lost_, numbers(0, 63).size() - 9);
}

TEST_F(LineSamplerTest, TheDistanceDoublesWhenThereIsNoRoomEither) {
  sampler_.begin(kNow);
  room_ = 1;
  feed(numbers(0, 32));  // 16 is taken, 32 is not
  room_ = 1'000;
  feed(numbers(33, 130));

  EXPECT_THAT(kept_, ElementsAre("16\n", "64\n", "96\n", "128\n"));
}

TEST_F(LineSamplerTest, AWindowLastsOneSecondAndTheNextBeginsAnew) {
  sampler_.begin(kNow);
  room_ = 0;
  feed(numbers(0, 16));
  sampler_.begin(kNow + 500ms);  // it is open already
  EXPECT_EQ(sampler_.end_if_over(kNow + 999ms), 0U);
  EXPECT_TRUE(sampler_.is_active());
  EXPECT_EQ(sampler_.end_if_over(kNow + 1s), 0U);
  EXPECT_FALSE(sampler_.is_active());

  room_ = 1'000;
  sampler_.begin(kNow + 2s);
  feed(numbers(0, 32));
  EXPECT_THAT(kept_, ElementsAre("16\n", "32\n"));
}

TEST_F(LineSamplerTest, AnUnfinishedLineIsLostWithTheWindow) {
  sampler_.begin(kNow);
  feed(numbers(0, 15) + "half a li");
  EXPECT_TRUE(sampler_.is_mid_line());
  const std::size_t before = lost_;

  EXPECT_EQ(sampler_.end_if_over(kNow + 1s), 9U);

  EXPECT_EQ(before, numbers(0, 15).size());
  EXPECT_THAT(kept_, IsEmpty());
}

TEST_F(LineSamplerTest, Fault23ALineWithoutEndIsLostAndTheNextOneStays) {
  sampler_.begin(kNow);
  feed(numbers(0, 15));
  const std::string endless(1'000'000, 'x');
  feed(endless);
  feed(endless + "\nnext\n");

  EXPECT_THAT(kept_, ElementsAre("next\n"));
  EXPECT_EQ(lost_, numbers(0, 15).size() + 2'000'001);
}

TEST_F(LineSamplerTest, WithItsMarkerALineFitsIntoOneWriteOfAPipe) {
  sampler_.begin(kNow);
  const std::string longest = std::string(LineSampler::kLongestLine - 1, 'x') + "\n";
  feed(numbers(0, 15) + longest);

  EXPECT_THAT(kept_, ElementsAre(longest));
  EXPECT_LE(longest.size() + std::string("\n[accel: 18446744073709551615 bytes dropped]\n").size(),
            4096U);
}

}  // namespace
}  // namespace accel::supervisor::line_sampler_test
