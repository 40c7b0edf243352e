// Who learns of the death of a rank, whatever it waits for. The timeouts of these groups are minutes and hours: an answer is
// that of a look at the processes.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/shm_ranks.h"

namespace accel::shm::shm_death_test {
namespace {

using test::bytes_of;
using test::letter_from;
using ::testing::HasSubstr;
using ChildRank = test::ShmChildRank;
using Ranks = test::ShmRanks;

// Rank 1 lives and does not come; who waits for it learns of rank 2.
TEST(ShmDeath, OfAThirdRankIsSeenWhileAnotherOneIsWaitedFor) {
  const Ranks ranks(3, 1);
  ChildRank late(ranks, 1, [](ShmGroup&) {});
  ChildRank dying(ranks, 2, [](ShmGroup&) {});
  const pid_t pid = dying.pid();
  const auto group = ranks.join(0);
  std::jthread killer([&] {
    dying.wait_until_joined();
    dying.kill();
  });

  const auto done = group->barrier();

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(done.error().message(),
              HasSubstr("rank 2 (process " + std::to_string(pid) + ") has died"));
}

// It has done its part of the step, and waits in it for rank 1 like this rank.
TEST(ShmDeath, OfAThirdRankInTheSameCollectiveIsSeen) {
  const Ranks ranks(3, 1);
  ChildRank late(ranks, 1, [](ShmGroup&) {});
  ChildRank dying(ranks, 2, [](ShmGroup& group) { (void)group.barrier(); });
  const auto group = ranks.join(0);
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  std::jthread killer([&] {
    while (memory.line(2).phase.load() < 2) std::this_thread::yield();
    dying.kill();
  });

  const auto done = group->barrier();

  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 2"));
  EXPECT_THAT(done.error().message(), HasSubstr("has died"));
}

TEST(ShmDeath, AfterTheEndOfACollectiveDoesNotHarmWhoIsStillInIt) {
  const Ranks ranks(3, 1);
  const auto gather = [](ShmGroup& group) {
    std::vector<float> values(4);
    std::vector<std::vector<float>> room(3, values);
    const std::vector<std::byte*> out = {bytes_of(room[0]), bytes_of(room[1]), bytes_of(room[2])};
    return group.gather(bytes_of(values), out, 16, 0);
  };
  const GroupMemory memory =
      or_throw(GroupMemory::map(ranks.memory().get(), ranks.options(0).shape));
  ChildRank leaving(ranks, 2, [&](ShmGroup& group) {
    (void)gather(group);
    ::_exit(0);  // without a word
  });
  ChildRank other(ranks, 1, [&](ShmGroup& group) { (void)gather(group); });
  const auto group = ranks.join(0);
  EXPECT_TRUE(gather(*group));
  const auto next = group->barrier();
  ASSERT_FALSE(next);
  EXPECT_THAT(next.error().message(), HasSubstr("rank 2"));
}

TEST(ShmDeath, OfASenderIsSeenByWhoPollsItsMessage) {
  const Ranks ranks(2, 1);
  ChildRank dying(ranks, 1, [](ShmGroup&) {});
  const auto group = ranks.join(0);
  std::vector<float> values(4);
  const auto transfer = letter_from(1, values);
  or_throw(group->post(transfer));
  EXPECT_FALSE(or_throw(group->is_done(transfer)));
  dying.wait_until_joined();
  dying.kill();

  Result<bool> done = false;
  while (done && !*done) done = group->is_done(transfer);

  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("rank 1"));
  EXPECT_THAT(done.error().message(), HasSubstr("has died"));
  EXPECT_FALSE(group->is_done(transfer)) << "of a group that has ended";
}

TEST(ShmDeath, BeforeJoiningIsSeenWhereTheProcessesAreKnown) {
  const Ranks ranks(2, 1);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  GroupOptions options = ranks.options(0);
  options.join_timeout = std::chrono::hours(1);
  options.processes = {{::getpid(), start_time_of(::getpid())}, {child, start_time_of(child)}};

  const auto group = ShmGroup::join(ranks.memory(), options);

  ASSERT_FALSE(group);
  EXPECT_EQ(group.error().code(), ErrorCode::kPeerLost);
  EXPECT_THAT(group.error().message(), HasSubstr("rank 1 has died"));
  ::waitpid(child, nullptr, 0);
}

TEST(ShmDeath, OfARankThatHasJoinedIsSeenByWhoWaitsForOthersToJoin) {
  const Ranks ranks(3, 1);
  ChildRank dying(ranks, 0, [](ShmGroup&) {});  // waits for rank 2, which never comes
  GroupOptions options = ranks.options(1);
  options.join_timeout = std::chrono::hours(1);
  const GroupMemory memory = or_throw(GroupMemory::map(ranks.memory().get(), options.shape));
  while (memory.line(0).phase.load() == 0) std::this_thread::yield();
  dying.kill();

  const auto group = ShmGroup::join(ranks.memory(), options);

  ASSERT_FALSE(group);
  EXPECT_THAT(group.error().message(), HasSubstr("rank 0"));
  EXPECT_THAT(group.error().message(), HasSubstr("has died"));
}

}  // namespace
}  // namespace accel::shm::shm_death_test
