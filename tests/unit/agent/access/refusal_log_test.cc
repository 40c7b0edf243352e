#include "agent/access/refusal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/manual_clock.h"

namespace accel::agent::refusal_log_test {
namespace {

using std::chrono::seconds;
using test::ManualClock;
using ::testing::Optional;

int num_admitted(RefusalLog& log, int tries) {
  int admitted = 0;
  for (int i = 0; i < tries; ++i) admitted += log.admit("refused") ? 1 : 0;
  return admitted;
}

TEST(RefusalLog, Fault60WritesABurstAndThenOneLineASecond) {
  ManualClock clock;
  RefusalLog log(clock);

  EXPECT_EQ(num_admitted(log, 1'000), RefusalLog::kBurst);
  clock.advance(seconds(3));
  EXPECT_EQ(num_admitted(log, 1'000), 3);
}

TEST(RefusalLog, SaysHowManyItLeftOut) {
  ManualClock clock;
  RefusalLog log(clock);
  (void)num_admitted(log, RefusalLog::kBurst + 41);
  clock.advance(seconds(2));

  EXPECT_THAT(log.admit("refused x"),
              Optional(std::string("refused x (41 more refusals were not logged)")));
  EXPECT_THAT(log.admit("refused y"), Optional(std::string("refused y")));
}

TEST(RefusalLog, IsFullAgainAfterALongQuietTimeAndNotFuller) {
  ManualClock clock;
  RefusalLog log(clock);
  (void)num_admitted(log, 30);
  clock.advance(std::chrono::hours(24));

  EXPECT_EQ(num_admitted(log, 1'000), RefusalLog::kBurst);
}

TEST(RefusalLog, KeepsFractionsOfASecond) {
  ManualClock clock;
  RefusalLog log(clock);
  (void)num_admitted(log, RefusalLog::kBurst);

  clock.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(num_admitted(log, 1), 0);
  clock.advance(std::chrono::milliseconds(600));
  EXPECT_EQ(num_admitted(log, 1), 1);
}

}  // namespace
}  // namespace accel::agent::refusal_log_test
