// Monitored barriers: who passes, and who is named.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/engine/shm/group/wait_slice.h"
#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_roll_call_test {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ChildRank = test::ShmChildRank;
using Ranks = test::ShmRanks;

constexpr milliseconds kLong = std::chrono::minutes(1);
constexpr milliseconds kShort{20};

TEST(RollCallTest, TheErrorNamesAllWithWhatIsKnownOfThem) {
  const std::vector<Absent> absent = {{.rank = 1, .why = "has died"}, {.rank = 3}};
  const Error error = error_of(absent, 4, milliseconds(500));
  EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
  EXPECT_EQ(error.message(),
            "of 4 ranks these have not come to a monitored barrier within 500 ms: "
            "rank 1 (has died), rank 3");
}

TEST(WaitSlice, EndsWithTheDeadlineAndIsNeverNothing) {
  using std::chrono::microseconds;
  EXPECT_EQ(wait_slice(milliseconds(100), std::chrono::hours(1)), milliseconds(100));
  EXPECT_EQ(wait_slice(milliseconds(100), microseconds(9'001)), milliseconds(10));
  EXPECT_EQ(wait_slice(milliseconds(100), microseconds(0)), milliseconds(1));
  EXPECT_EQ(wait_slice(milliseconds(100), std::chrono::hours(-1)), milliseconds(1));
}

TEST(ShmRollCall, AllPassWhenAllComeAndOtherCollectivesGoOn) {
  for (const int size : {1, 2, 3, 5}) {
    Ranks(size).run([](ShmGroup& group) {
      for (int round = 0; round < 50; ++round) {
        ASSERT_TRUE(group.monitored_barrier(kLong, RollCall::kOfAll));
        ASSERT_TRUE(group.monitored_barrier(kLong, RollCall::kUntilFirstLoss));
        std::vector<int> sum = {1};
        auto* const bytes = test::bytes_of(sum);
        ASSERT_TRUE(group.all_reduce(bytes, bytes, 1, DataType::kInt32, ReduceOp::kSum));
        ASSERT_EQ(sum[0], group.world_size());
      }
    });
  }
}

std::string said(const Result<void>& done) {
  return done ? "no error" : done.error().message();
}

// Rank 2 has come, ranks 1 and 3 have not.
TEST(ShmRollCall, AllThatHaveNotComeAreNamedAndNobodyWhoGaveUp) {
  const Ranks ranks(4);
  std::vector<std::unique_ptr<ShmGroup>> groups(4);
  {
    std::vector<std::jthread> joining;
    for (int rank = 0; rank < 4; ++rank)
      joining.emplace_back(
          [&, rank] { groups[static_cast<std::size_t>(rank)] = ranks.join(rank); });
  }
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  const std::uint32_t joined = memory.line(2).phase.load();
  std::string of_rank_2;
  std::jthread early(
      [&] { of_rank_2 = said(groups[2]->monitored_barrier(kLong, RollCall::kUntilFirstLoss)); });
  while (memory.line(2).phase.load() == joined) std::this_thread::yield();

  // The timeout is that of the call: that of the group is a minute here.
  EXPECT_THAT(said(groups[0]->monitored_barrier(kShort, RollCall::kOfAll)),
              HasSubstr("of 4 ranks these have not come to a monitored barrier within 20 ms: "
                        "rank 1, rank 3"));

  groups[1].reset();
  early.join();
  EXPECT_THAT(of_rank_2, HasSubstr(" ms: rank 1 (has left the group), rank 3"));
}

TEST(ShmRollCall, NobodyPassesWhatAnotherOneGaveUp) {
  const Ranks ranks(2);
  std::unique_ptr<ShmGroup> late;
  std::jthread joining([&] { late = ranks.join(1); });
  const auto early = ranks.join(0);
  joining.join();
  EXPECT_FALSE(early->monitored_barrier(kShort, RollCall::kOfAll));
  EXPECT_THAT(said(late->monitored_barrier(kLong, RollCall::kOfAll)),
              HasSubstr("rank 0 (has met an error)"));
}

// Rank 1 has come, is not scheduled until the timeout of rank 0 is over, and then goes.
TEST(ShmRollCall, WhoHasSeenAllComeWaitsForThemToGoBeyondItsOwnTimeout) {
  const Ranks ranks(2);
  std::unique_ptr<ShmGroup> slow;
  std::jthread joining([&] { slow = ranks.join(1); });
  const auto group = ranks.join(0);
  joining.join();
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  RankLine& line = memory.line(1);
  const std::uint32_t joined = line.phase.load();
  const auto publish_step = [&](std::uint32_t step) {
    memory.call(1, (joined + step) & 1U) = call_of(CallKind::kMonitoredBarrier, 0);
    publish(line, joined + step);
  };
  publish_step(1);
  std::jthread going([&] {
    while (!is_reached(memory.line(0).phase.load(), joined + 2)) std::this_thread::yield();
    std::this_thread::sleep_for(3 * kShort);
    publish_step(2);
  });

  EXPECT_EQ(said(group->monitored_barrier(kShort, RollCall::kOfAll)), "no error");
}

TEST(ShmRollCall, ADeathEndsItAtOnceOrAfterAllOthersWereHeard) {
  for (const RollCall roll_call : {RollCall::kUntilFirstLoss, RollCall::kOfAll}) {
    const Ranks ranks(3, 1);
    const ChildRank late(ranks, 1, [](ShmGroup&) {});
    ChildRank dying(ranks, 2, [](ShmGroup&) {});
    const auto group = ranks.join(0);
    dying.wait_until_joined();
    dying.kill();
    const bool is_at_once = roll_call == RollCall::kUntilFirstLoss;

    const std::string message =
        said(group->monitored_barrier(is_at_once ? kLong : kShort, roll_call));

    EXPECT_THAT(message, HasSubstr("rank 1, rank 2 (has died)"));
  }
}

TEST(ShmRollCall, WhenAllThatAreMissingAreDeadNobodyWaitsForThem) {
  const Ranks ranks(2, 1);
  ChildRank dying(ranks, 1, [](ShmGroup&) {});
  const auto group = ranks.join(0);
  dying.wait_until_joined();
  dying.kill();
  EXPECT_THAT(said(group->monitored_barrier(kLong, RollCall::kOfAll)),
              AllOf(HasSubstr("rank 1 (has died)"), Not(HasSubstr("60000 ms"))));
}

TEST(ShmRollCall, ARankThatCallsSomethingElseIsNamedWithBothCalls) {
  std::vector<std::string> messages(2);
  Ranks(2).run([&](ShmGroup& group) {
    const auto at = static_cast<std::size_t>(group.rank());
    messages[at] = said(group.rank() == 0 ? group.monitored_barrier(kLong, RollCall::kOfAll)
                                          : group.barrier());
  });
  EXPECT_THAT(messages, Each(HasSubstr("monitored barrier of 0 bytes")));
}

TEST(ShmRollCall, AbortEndsIt) {
  const Ranks ranks(2, 1);
  const ChildRank late(ranks, 1, [](ShmGroup&) {});
  const auto group = ranks.join(0);
  std::jthread ending([&] { group->abort(); });
  EXPECT_THAT(said(group->monitored_barrier(kLong, RollCall::kOfAll)), HasSubstr("by abort()"));
}

}  // namespace
}  // namespace accel::shm::shm_roll_call_test
