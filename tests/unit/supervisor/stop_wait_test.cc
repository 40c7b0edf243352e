#include "runtime/supervisor/stop/stop_wait.h"

#include <cstdlib>
#include <ctime>
#include <numeric>

#include <gtest/gtest.h>

namespace accel::supervisor::stop_wait_test {
namespace {

using namespace std::chrono_literals;

class StopWaitTest : public ::testing::Test {
 protected:
  StopWaitTest() {
    ::setenv("TZ", "UTC", 1);
    ::tzset();
    wait_.left = 28'300ms;
    wait_.until = std::chrono::system_clock::time_point(14h + 5min + 31s);
  }

  StopWait wait_;
};

TEST_F(StopWaitTest, NamesTheRanksThatStillRun) {
  wait_.ranks = {0, 2};
  wait_.is_interrupt = true;

  EXPECT_EQ(describe(wait_),
            "waiting until 14:05:31 (29 s) for ranks 0, 2; then they are killed. Another Ctrl-C "
            "kills them now");
}

TEST_F(StopWaitTest, NamesWhatEndedRanksHadStartedWithoutControlCharacters) {
  wait_.descendants = {{.pid = 12, .command = "rsync \x1b[2J a"}};

  EXPECT_EQ(
      describe(wait_),
      "waiting until 14:05:31 (29 s) for 1 process that ended ranks had started: 12 rsync  a; "
      "then they are killed. Another stop kills them now");
}

TEST_F(StopWaitTest, NamesEightRanksAndFourProcessesAtMost) {
  wait_.ranks.resize(16);
  std::iota(wait_.ranks.begin(), wait_.ranks.end(), 0);
  wait_.descendants.assign(6, {.pid = 7, .command = "a"});

  EXPECT_EQ(describe(wait_),
            "waiting until 14:05:31 (29 s) for ranks 0, 1, 2, 3, 4, 5, 6, 7, ... (16) and 6 "
            "processes that ended "
            "ranks had started: 7 a, 7 a, 7 a, 7 a, ...; then they are killed. Another stop kills "
            "them now");
}

}  // namespace
}  // namespace accel::supervisor::stop_wait_test
