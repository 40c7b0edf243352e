// When a launcher no longer believes that machine 0 is behind what listens at its address.

#include "launcher/start/machines/store_doubt.h"

#include <gtest/gtest.h>

namespace accel::launcher::store_doubt_test {
namespace {

using namespace std::chrono_literals;

constexpr TimePoint kStart{1h};

TEST(StoreDoubt, EndsWithTheFirstCardOfMachine0) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  doubt.answered(false);
  doubt.answered(true);
  doubt.broke(ErrorCode::kStoreUnreachable);
  EXPECT_FALSE(doubt.sign(kStart + 1h));
}

TEST(StoreDoubt, NeedsOneAnswerOfAnotherProtocol) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  EXPECT_FALSE(doubt.sign(kStart));
  doubt.broke(ErrorCode::kProtocol);
  EXPECT_EQ(doubt.sign(kStart), StrangerSign::kOtherProtocol);
}

TEST(StoreDoubt, NeedsThreeConnectionsThatAreClosedWithoutAnAnswer) {
  StoreDoubt doubt;
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(doubt.sign(kStart));
    doubt.came_up(kStart);
    doubt.broke(ErrorCode::kStoreUnreachable);
  }
  EXPECT_EQ(doubt.sign(kStart), StrangerSign::kCloses);
}

TEST(StoreDoubt, CountsConnectionsAnewAfterAnAnswer) {
  StoreDoubt doubt;
  for (int i = 0; i < 5; ++i) {
    doubt.came_up(kStart);
    if (i == 2) doubt.answered(false);
    doubt.broke(ErrorCode::kStoreUnreachable);
    EXPECT_EQ(doubt.sign(kStart).has_value(), i == 4);
  }
}

TEST(StoreDoubt, WaitsFiveSecondsForAnAnswer) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  EXPECT_FALSE(doubt.sign(kStart + 4999ms));
  EXPECT_EQ(doubt.sign(kStart + 5s), StrangerSign::kSilent);
}

TEST(StoreDoubt, WaitsFiveSecondsForACardInAStoreThatAnswers) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  doubt.answered(false);
  EXPECT_FALSE(doubt.sign(kStart + 4999ms));
  EXPECT_EQ(doubt.sign(kStart + 5s), StrangerSign::kNoLauncher);
}

TEST(StoreDoubt, DoesNotCountTheTimeInWhichWeWereStopped) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  doubt.pardon(1h);
  EXPECT_FALSE(doubt.sign(kStart + 1h + 4s));
  EXPECT_TRUE(doubt.sign(kStart + 1h + 5s));
}

TEST(StoreDoubt, BeginsAnewWhenNobodyListensAnyMore) {
  StoreDoubt doubt;
  doubt.came_up(kStart);
  doubt.broke(ErrorCode::kStoreUnreachable);
  doubt.broke(ErrorCode::kStoreUnreachable);  // refused
  doubt.came_up(kStart + 10s);
  EXPECT_FALSE(doubt.sign(kStart + 11s));
}

TEST(StoreDoubt, KeepsItsPatienceWhenItBeginsAnew) {
  StoreDoubt doubt(2s);
  doubt.broke(ErrorCode::kStoreUnreachable);
  doubt.came_up(kStart);
  EXPECT_FALSE(doubt.sign(kStart + 1s));
  EXPECT_EQ(doubt.sign(kStart + 2s), StrangerSign::kSilent);
}

}  // namespace
}  // namespace accel::launcher::store_doubt_test
