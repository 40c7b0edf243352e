// That calls of a group which a thread makes are in the order of the program, and that their errors reach who waits.

#include "libaccel/engine/collectives/queued_group.h"

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "libaccel/engine/collectives/communication_thread.h"
#include "libaccel/engine/collectives/shm_backend.h"
#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::queued_group_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(CommunicationThread, RunsJobsInTheirOrder) {
  CommunicationThread thread;
  std::vector<int> ran;
  std::latch may_run(1);
  (void)thread.begin([&] { may_run.wait(); });
  for (int number = 0; number < 4; ++number)
    (void)thread.begin([&, number] { ran.push_back(number); });
  const auto last = thread.begin([] {});
  EXPECT_FALSE(thread.is_idle());
  EXPECT_FALSE(thread.has_run(last));

  may_run.count_down();
  EXPECT_TRUE(thread.wait(last));

  EXPECT_THAT(ran, ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(thread.has_run(last));
  thread.drain();
  EXPECT_TRUE(thread.is_idle());
}

TEST(CommunicationThread, TellsTheErrorOfAJobToWhoWaitsForThatOne) {
  CommunicationThread thread;
  const auto lost = thread.begin([] { throw Error(ErrorCode::kPeerLost, "rank 1 has ended"); });
  const auto well = thread.begin([] {});

  EXPECT_TRUE(thread.wait(well));
  const auto done = thread.wait(lost);

  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
}

TEST(CommunicationThread, RunsWhatWasBegunBeforeItEnds) {
  std::atomic<int> num_run = 0;
  {
    CommunicationThread thread;
    for (int i = 0; i < 100; ++i) (void)thread.begin([&] { ++num_run; });
  }
  EXPECT_EQ(num_run, 100);
}

TEST(CommunicationThread, HasNoThreadBeforeItsFirstJob) {
  CommunicationThread thread;
  thread.drain();
  EXPECT_TRUE(thread.is_idle());
}

// Two ranks of one node as threads, each with a queue of its own.
class Pair {
 public:
  Pair() : memory_(or_throw(shm::GroupMemory::create(kShape))) {}

  [[nodiscard]] std::shared_ptr<QueuedGroup> join(int rank) const {
    return std::make_shared<QueuedGroup>(
        or_throw(shm::ShmGroup::join(memory_, {.rank = rank, .shape = kShape, .names = {0, 1}})),
        std::make_shared<CommunicationThread>());
  }

 private:
  static constexpr shm::GroupShape kShape = {.world_size = 2, .slot_bytes = 4096};
  UniqueFd memory_;
};

void run_two(const std::function<void(int rank)>& body) {
  std::jthread other([&] { body(1); });
  body(0);
}

// Were they not in one order, the ranks would call different things.
TEST(QueuedGroup, MakesCallsInTheOrderOfTheProgramWhoeverMakesThem) {
  const Pair pair;
  run_two([&](int rank) {
    const auto group = pair.join(rank);
    ShmBackend backend(group);
    ShmBackend::Tensors small = {at::full({3}, rank + 1.0F)};
    ShmBackend::Tensors large = {at::full({5000}, rank + 1.0F)};
    ShmBackend::Tensors later = {at::full({3}, rank + 10.0F)};
    (void)backend.set_overlaps(true);
    const auto first = backend.allreduce(large, {});
    const auto second = backend.allreduce(small, {});
    (void)backend.set_overlaps(false);
    backend.allreduce(later, {})->wait();

    EXPECT_TRUE(first->isCompleted() && second->isCompleted()) << "later calls wait for them";
    first->wait();
    second->wait();
    EXPECT_TRUE(large[0].equal(at::full({5000}, 3.0F)));
    EXPECT_TRUE(small[0].equal(at::full({3}, 3.0F)));
    EXPECT_TRUE(later[0].equal(at::full({3}, 21.0F)));
  });
}

TEST(QueuedGroup, TellsWhoWaitsThatAnotherRankCallsSomethingElse) {
  const Pair pair;
  run_two([&](int rank) {
    ShmBackend backend(pair.join(rank));
    ShmBackend::Tensors tensors = {at::full({3 + rank}, 1.0F)};
    (void)backend.set_overlaps(true);
    const auto work = backend.allreduce(tensors, {});
    std::string said;
    try {
      work->wait();
    } catch (const Error& error) {
      said = error.what();
    }
    EXPECT_THAT(said, HasSubstr("all_reduce"));
  });
}

// Else it would wait for the other rank until the timeout of half an hour.
TEST(QueuedGroup, EndsWhatNobodyWaitsForAnyMore) {
  const Pair pair;
  run_two([&](int rank) {
    auto group = pair.join(rank);
    if (rank == 1) {
      EXPECT_FALSE(group->barrier()) << "rank 0 has ended the group";
      return;
    }
    (void)group->begin([](shm::ByteGroup& own) {
      or_throw(own.monitored_barrier(std::chrono::hours(1), shm::RollCall::kOfAll));
    });
    group.reset();
  });
}

}  // namespace
}  // namespace accel::queued_group_test
