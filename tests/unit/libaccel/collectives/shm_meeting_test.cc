// The ranks are threads, the store is one of this process: which memory comes of it is seen without a launcher. With one:
// tests/integration/supervised.

#include "libaccel/engine/collectives/shm_meeting.h"

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <unistd.h>

namespace accel::shm_meeting_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Each;
using ::testing::HasSubstr;

const shm::NodeIdentity kHere = {"boot", "pid:[1]", "user:[1]"};

ShmVote vote(const shm::NodeIdentity& node, bool has_channel) {
  return {.node = node, .has_channel = has_channel, .offer = {}};
}

TEST(ShmDecision, TakesTheSupervisorsMemoryWhenEverybodyCanHaveIt) {
  EXPECT_EQ(or_throw(decide({vote(kHere, true), vote(kHere, true)})), ShmSource::kChannel);
  EXPECT_EQ(or_throw(decide({vote(kHere, true), vote(kHere, false)})), ShmSource::kRankZero);
}

TEST(ShmDecision, NamesTheRankThatIsOnAnotherNode) {
  shm::NodeIdentity elsewhere = kHere;
  elsewhere.pid_namespace = "pid:[2]";

  const auto decided = decide({vote(kHere, true), vote(kHere, true), vote(elsewhere, true)});

  ASSERT_FALSE(decided);
  EXPECT_EQ(decided.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(decided.error().message(),
              HasSubstr("rank 2 cannot share memory: it runs on another pid namespace"));
}

ShmMeetingOptions options_of(int rank, int size) {
  ShmMeetingOptions options;
  options.member.rank = rank;
  options.member.world_size = size;
  options.member.timeout = 60s;
  options.group.shape = {.world_size = size, .slot_bytes = 4096};
  options.node = kHere;
  return options;
}

// What each of `size` ranks gets: "", or why it has no group. `change` is what a rank does otherwise.
std::vector<std::string> outcomes(
    int size,
    const std::function<void(int, ShmMeetingOptions&)>& change,
    const std::function<void(shm::ShmGroup&)>& body = [](shm::ShmGroup&) {}) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::string> said(static_cast<std::size_t>(size));
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&, rank] {
      ShmMeetingOptions options = options_of(rank, size);
      change(rank, options);
      const auto met = meet_in_shared_memory(*store, options);
      if (met)
        body(**met);
      else
        said[static_cast<std::size_t>(rank)] = met.error().message();
    });
  }
  ranks.clear();
  return said;
}

class ShmMeeting : public ::testing::TestWithParam<int> {};

TEST_P(ShmMeeting, GivesAllRanksOneGroup) {
  const auto nothing = [](int, ShmMeetingOptions&) {};
  const auto said = outcomes(GetParam(), nothing, [](shm::ShmGroup& group) {
    std::int64_t value = group.rank();
    auto* const bytes = reinterpret_cast<std::byte*>(&value);
    or_throw(group.all_reduce(bytes, bytes, 1, shm::DataType::kInt64, shm::ReduceOp::kSum));
    EXPECT_EQ(value, group.world_size() * (group.world_size() - 1) / 2);
  });
  EXPECT_THAT(said, Each(""));
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmMeeting, ::testing::Values(1, 2, 3));

TEST(ShmMeetingErrors, ARankOfAnotherNodeMakesAllGiveUpWithTheSameWords) {
  const auto said = outcomes(3, [](int rank, ShmMeetingOptions& options) {
    if (rank == 1) options.node->boot_id = "another";
  });
  EXPECT_THAT(said, Each("rank 1 cannot share memory: it runs on another kernel than rank 0"));
}

TEST(ShmMeetingErrors, ARankThatDoesNotKnowItsNodeIsNamed) {
  const auto said = outcomes(2, [](int rank, ShmMeetingOptions& options) {
    if (rank == 1) options.node = Error(ErrorCode::kUnsupported, "/proc is empty");
  });
  EXPECT_THAT(said, Each("rank 1 cannot share memory: /proc is empty"));
}

TEST(ShmMeetingErrors, ARankThatCannotMapTheMemoryIsNamedToAll) {
  const auto said = outcomes(3, [](int rank, ShmMeetingOptions& options) {
    if (rank == 2) options.group.shape.slot_bytes = 8192;  // as of another build
  });
  EXPECT_THAT(said,
              Each(HasSubstr("rank 2 cannot share memory: the shared memory of the group has")));
}

// It has voted, and says nothing of the memory any more.
TEST(ShmMeetingErrors, ARankThatDiesWhileTheyMeetIsNamed) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  auto store = c10::make_intrusive<c10d::HashStore>();
  say(*store,
      {.key = "shm/node", .what_is_missing = ""},
      1,
      "boot/pid:[1]/user:[1] 0 " + std::to_string(child) + " " +
          std::to_string(shm::start_time_of(child)) + " ");
  std::string said;
  try {
    (void)meet_in_shared_memory(*store, options_of(0, 2));
  } catch (const Error& error) {
    said = error.message();
  }
  EXPECT_THAT(said, HasSubstr("rank 1 (process " + std::to_string(child) + ") has died"));
  ::waitpid(child, nullptr, 0);
}

TEST(ShmMeetingErrors, RankZeroWithoutMemoryIsNamedToAll) {
  const auto said = outcomes(2, [](int rank, ShmMeetingOptions& options) {
    if (rank == 0) options.group.shape.slot_bytes = 100;
  });
  EXPECT_THAT(
      said,
      Each(HasSubstr("rank 0 cannot share memory: a group of 2 ranks with slots of 100 bytes")));
}

TEST(ShmMeetingErrors, ALaterMeetingOfTheSameRanksHasOtherMemory) {
  auto store = c10::make_intrusive<c10d::HashStore>();
  for (const char* prefix : {"one", "two"}) {
    auto part = c10::make_intrusive<c10d::PrefixStore>(prefix, store);
    EXPECT_TRUE(meet_in_shared_memory(*part, options_of(0, 1))) << "the memory was in use already";
  }
}

}  // namespace
}  // namespace accel::shm_meeting_test
