#include "agent/rendezvous/clock_skew.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::clock_skew_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// One beat a second, each `delay` on its way; the last word that came of it.
std::string beats(ClockSkew& clock,
                  std::chrono::milliseconds skew,
                  int number,
                  std::chrono::milliseconds delay = 1ms) {
  static std::chrono::milliseconds now = 1'700'000'000s;
  std::string last;
  for (int i = 0; i < number; ++i) {
    now += 1s;
    const std::string text = clock.observe(now + skew, now + delay);
    if (!text.empty()) last = text;
  }
  return last;
}

TEST(ClockSkew, Fault44AClockThatIsOffIsToldOnceAndWhenItIsRightAgain) {
  ClockSkew clock;

  EXPECT_THAT(beats(clock, 90s, 5), HasSubstr("90.0 s ahead of"));
  EXPECT_EQ(beats(clock, 90s, 100), "");
  EXPECT_THAT(beats(clock, -3600s, 5), HasSubstr("3600.0 s behind"));
  EXPECT_THAT(beats(clock, 0s, 5), HasSubstr("agrees"));
  EXPECT_EQ(beats(clock, 0s, 100), "");
}

TEST(ClockSkew, UpToASecondIsNoWordWorth) {
  ClockSkew clock;

  EXPECT_EQ(beats(clock, 990ms, 10), "");
  EXPECT_EQ(beats(clock, -990ms, 10), "");
  EXPECT_EQ(clock.told(), 0ms);
}

TEST(ClockSkew, ABeatThatWasLongOnItsWayIsNoClockThatIsBehind) {
  ClockSkew clock;

  EXPECT_EQ(beats(clock, 0s, 3), "");
  EXPECT_EQ(beats(clock, 0s, 2, 30s), "");
  EXPECT_EQ(beats(clock, 0s, 3), "");
}

TEST(ClockSkew, ASkewThatCreepsIsToldAgainAfterASecond) {
  ClockSkew clock;

  EXPECT_THAT(beats(clock, 2s, 3), HasSubstr("2.0 s ahead"));
  EXPECT_EQ(beats(clock, 2'900ms, 3), "");
  EXPECT_THAT(beats(clock, 3'100ms, 3), HasSubstr("3.1 s ahead"));
}

}  // namespace
}  // namespace accel::agent::clock_skew_test
