#include "libaccel/engine/collectives/peer_watch.h"

#include <barrier>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "libaccel/engine/collectives/wait_interrupter.h"
#include "libaccel/engine/process/gloo_backend.h"
#include "libaccel/engine/process/sigpipe.h"
#include "libaccel/engine/shm/group/point_to_point.h"

namespace accel::peer_watch_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const Error kClosed(ErrorCode::kPeerLost, "rank 2 has ended or met an error");

RankEnd silent(int rank) {
  return {.rank = rank, .failure = {}};
}

RankEnd left(int rank) {
  return {.rank = rank, .failure = {}, .has_left = true};
}

RankEnd told(int rank, GroupFailure failure) {
  return {.rank = rank, .failure = std::move(failure)};
}

TEST(CauseOfAnError, IsARankThatHasEndedWithoutAWord) {
  const GroupFailure late = {.rank = 1, .message = "rank 2 is late"};

  const GroupFailure cause = cause_of(0, kClosed, std::vector{told(1, late), silent(3)});

  EXPECT_EQ(cause.rank, 0);
  EXPECT_EQ(cause.message, "rank 3 has ended; " + kClosed.message());
  EXPECT_THAT(cause_of(0, kClosed, std::vector{silent(3), silent(5)}).message,
              HasSubstr("rank 3, rank 5 have ended; "));
}

TEST(CauseOfAnError, IsNotNamedTwice) {
  EXPECT_EQ(cause_of(0, kClosed, std::vector{silent(2)}).message, kClosed.message());
}

TEST(CauseOfAnError, IsWhatAnotherOneHasSaidOfWhoeverItWas) {
  const GroupFailure of_rank_4 = {
      .rank = 4, .code = ErrorCode::kShapeMismatch, .message = "8 bytes"};

  const GroupFailure cause = cause_of(0, kClosed, std::vector{told(2, of_rank_4)});
  const Error error = error_for(0, Error(kClosed).while_doing("a barrier"), cause);

  EXPECT_EQ(cause, of_rank_4);
  EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
  EXPECT_EQ(error.message(), "rank 4 said: 8 bytes");
  EXPECT_THAT(error.context(), ElementsAre("a barrier"));
}

TEST(CauseOfAnError, IsNobodyWhoHasLeftInOrder) {
  const GroupFailure full = {.rank = 2, .code = ErrorCode::kOutOfMemory, .message = "no memory"};

  EXPECT_EQ(cause_of(0, kClosed, std::vector{left(1), told(2, full)}), full);
  EXPECT_EQ(cause_of(0, kClosed, std::vector{left(1)}).message, kClosed.message());
  EXPECT_EQ(cause_of(0, kClosed, std::vector{left(1), silent(3)}).message,
            "rank 3 has ended; " + kClosed.message());
}

TEST(CauseOfAnError, KeepsTheRemedyOfItsOwnRankAlone) {
  const Error late(ErrorCode::kPeerLost, "rank 3 did not come", "raise the timeout");
  const GroupFailure of_rank_2 = {.rank = 2, .message = "rank 4 has ended"};

  EXPECT_EQ(error_for(0, late, cause_of(0, late, {})).remedy(), "raise the timeout");
  EXPECT_NE(error_for(0, late, of_rank_2).remedy(), "raise the timeout");
}

TEST(WaitForARank, IsInVainWhenItHasEndedOrAnyHasMetAnError) {
  EXPECT_FALSE(is_in_vain(2, {}, 3));
  EXPECT_FALSE(is_in_vain(2, std::vector{left(1), silent(3)}, 3));
  EXPECT_TRUE(is_in_vain(2, std::vector{left(2)}, 3));
  EXPECT_TRUE(is_in_vain(2, std::vector{silent(2)}, 3));
  EXPECT_TRUE(is_in_vain(2, std::vector{told(1, {.rank = 1})}, 3));
}

TEST(WaitForAnyRank, IsInVainWhenOneIsLostOrAllHaveLeft) {
  EXPECT_FALSE(is_in_vain(shm::kAnyRank, {}, 3));
  EXPECT_FALSE(is_in_vain(shm::kAnyRank, std::vector{left(1), left(3)}, 3));
  EXPECT_TRUE(is_in_vain(shm::kAnyRank, std::vector{left(1), left(2), left(3)}, 3));
  EXPECT_TRUE(is_in_vain(shm::kAnyRank, std::vector{silent(1)}, 3));
  EXPECT_TRUE(is_in_vain(shm::kAnyRank, std::vector{told(1, {.rank = 1})}, 3));
}

TEST(CauseOfAnError, IsTheErrorItselfWhereNobodyIsLost) {
  const Error own(ErrorCode::kShapeMismatch, "8 bytes", "bring 4");

  const GroupFailure cause = cause_of(0, own, std::vector{silent(3)});

  EXPECT_EQ(error_for(0, own, cause).message(), "8 bytes");
  EXPECT_EQ(error_for(0, own, cause).remedy(), "bring 4");
  EXPECT_EQ(cause_of(0, kClosed, {}).message, kClosed.message());
}

// Rank 1 says why it goes, more than fits; rank 2 goes without a word; rank 3 goes in order.
TEST(PeerWatch, AreHeardByAllWhoStayAndTheirAbsenceIsSeen) {
  constexpr int kFirstTag = 7;
  ignore_sigpipe_unless_handled();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<RankEnd> ends;
  std::barrier all_are_there(4);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&, rank] {
      const auto gloo =
          connect_gloo(store, {.rank = rank, .world_size = 4, .is_one_machine = true});
      WaitInterrupter wait_interrupter;
      PeerWatch peer_watch(*gloo, wait_interrupter, kFirstTag);
      EXPECT_THAT(peer_watch.look(), SizeIs(0));
      all_are_there.arrive_and_wait();
      if (rank == 1)
        peer_watch.say({.rank = 2, .message = "no\x1b memory " + std::string(600, '.')});
      if (rank == 3) peer_watch.say_left();
      while (rank == 0 && ends.size() < 3) {
        ends = peer_watch.look();
        std::this_thread::yield();
      }
    });
  }
  ranks.clear();
  ASSERT_THAT(ends, SizeIs(3));
  ASSERT_TRUE(ends[0].failure);
  EXPECT_EQ(ends[0].failure->rank, 2);
  EXPECT_THAT(ends[0].failure->message, testing::StartsWith("no? memory .."));
  EXPECT_EQ(ends[1].rank, 2);
  EXPECT_FALSE(ends[1].failure || ends[1].has_left);
  EXPECT_EQ(ends[2].rank, 3);
  EXPECT_TRUE(ends[2].has_left && !ends[2].failure);
}

}  // namespace
}  // namespace accel::peer_watch_test
