// When a launcher no longer believes that machine 0 is behind what listens at its address.

#include "launcher/start/machines/main/stranger_check.h"

#include <gtest/gtest.h>

namespace accel::launcher::stranger_check_test {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

TEST(StrangerCheck, EndsWithTheFirstCardOfMachine0) {
  StrangerCheck check;
  check.came_up(kStart);
  check.answered(false);
  check.answered(true);
  check.broke(ErrorCode::kStoreUnreachable);
  EXPECT_FALSE(check.sign(kStart + 1h));
}

TEST(StrangerCheck, NeedsOneAnswerOfAnotherProtocol) {
  StrangerCheck check;
  check.came_up(kStart);
  EXPECT_FALSE(check.sign(kStart));
  check.broke(ErrorCode::kProtocol);
  EXPECT_EQ(check.sign(kStart), StrangerSign::kOtherProtocol);
}

TEST(StrangerCheck, NeedsThreeConnectionsThatAreClosedWithoutAnAnswer) {
  StrangerCheck check;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(check.sign(kStart));
    check.came_up(kStart);
    check.broke(ErrorCode::kStoreUnreachable);
  }
  EXPECT_EQ(check.sign(kStart), StrangerSign::kCloses);
}

TEST(StrangerCheck, CountsConnectionsAnewAfterAnAnswer) {
  StrangerCheck check;
  for (int i = 0; i < 5; ++i) {
    check.came_up(kStart);
    if (i == 2) check.answered(false);
    check.broke(ErrorCode::kStoreUnreachable);
    EXPECT_EQ(check.sign(kStart).has_value(), i == 4);
  }
}

TEST(StrangerCheck, WaitsFiveSecondsForAnAnswer) {
  StrangerCheck check;
  check.came_up(kStart);
  EXPECT_FALSE(check.sign(kStart + 4999ms));
  EXPECT_EQ(check.sign(kStart + 5s), StrangerSign::kSilent);
}

TEST(StrangerCheck, WaitsFiveSecondsForACardInAStoreThatAnswers) {
  StrangerCheck check;
  check.came_up(kStart);
  check.answered(false);
  EXPECT_FALSE(check.sign(kStart + 4999ms));
  EXPECT_EQ(check.sign(kStart + 5s), StrangerSign::kNoLauncher);
}

TEST(StrangerCheck, DoesNotCountTheTimeInWhichWeWereStopped) {
  StrangerCheck check;
  check.came_up(kStart);
  check.pardon(1h);
  EXPECT_FALSE(check.sign(kStart + 1h + 4s));
  EXPECT_TRUE(check.sign(kStart + 1h + 5s));
}

TEST(StrangerCheck, BeginsAnewWhenNobodyListensAnyMore) {
  StrangerCheck check;
  check.came_up(kStart);
  check.broke(ErrorCode::kStoreUnreachable);
  check.broke(ErrorCode::kStoreUnreachable);  // refused
  check.came_up(kStart + 10s);
  EXPECT_FALSE(check.sign(kStart + 11s));
}

TEST(StrangerCheck, KeepsItsPatienceWhenItBeginsAnew) {
  StrangerCheck check(2s);
  check.broke(ErrorCode::kStoreUnreachable);
  check.came_up(kStart);
  EXPECT_FALSE(check.sign(kStart + 1s));
  EXPECT_EQ(check.sign(kStart + 2s), StrangerSign::kSilent);
}

}  // namespace
}  // namespace accel::launcher::stranger_check_test
