// Ranks as threads, with Gloo between them. Exchanges: two_level_group_test.cc; deaths: node_ranks_test.cc.

#include "libaccel/engine/collectives/node_link.h"

#include <barrier>
#include <chrono>
#include <filesystem>
#include <functional>
#include <iterator>
#include <optional>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "libaccel/engine/process/gloo_backend.h"
#include "libaccel/engine/process/sigpipe.h"

namespace accel::node_link_test {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;

// In step: a rank leaves when all are through, unless body() lets go of its link.
void run_linked(
    int num_ranks,
    std::chrono::milliseconds timeout,
    const std::function<void(std::optional<NodeLink>&, int rank, std::barrier<>&)>& body) {
  ignore_sigpipe_unless_handled();
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier<> all(num_ranks);
  std::vector<std::jthread> ranks;
  for (int rank = 0; rank < num_ranks; ++rank) {
    ranks.emplace_back([&, rank] {
      std::optional<NodeLink> link;
      link.emplace(
          connect_gloo(store, {.rank = rank, .world_size = num_ranks, .is_one_machine = true}),
          timeout);
      all.arrive_and_wait();
      body(link, rank, all);
      all.arrive_and_wait();
    });
  }
}

void run_two(std::chrono::milliseconds timeout,
             const std::function<void(NodeLink&, int rank, std::barrier<>&)>& body) {
  run_linked(2, timeout, [&](std::optional<NodeLink>& link, int rank, std::barrier<>& both) {
    body(*link, rank, both);
  });
}

shm::TransferPtr letter_to(int peer, std::int32_t tag, std::byte& place, bool is_sent) {
  auto transfer = std::make_shared<shm::Transfer>();
  transfer->is_sent = is_sent;
  transfer->peer = peer;
  transfer->tag = tag;
  transfer->data = &place;
  transfer->bytes = 1;
  return transfer;
}

std::ptrdiff_t num_threads() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"), {});
}

TEST(PolledLetters, TakeNoThreads) {
  run_two(1h, [](NodeLink& link, int rank, std::barrier<>& both) {
    std::vector<std::byte> room(40);
    std::vector<shm::TransferPtr> transfers;
    for (std::size_t i = 0; i < room.size(); ++i) {
      transfers.push_back(letter_to(1 - rank, static_cast<std::int32_t>(i), room[i], rank == 0));
      if (rank == 1) or_throw(link.post(transfers.back()));
    }
    both.arrive_and_wait();
    const auto before = num_threads();
    for (const auto& transfer : transfers)
      EXPECT_FALSE(rank == 1 && or_throw(link.is_done(transfer)));
    both.arrive_and_wait();
    EXPECT_EQ(num_threads(), before);
    both.arrive_and_wait();
    for (const auto& transfer : transfers) {
      if (rank == 0) or_throw(link.post(transfer));
      while (!or_throw(link.is_done(transfer))) std::this_thread::yield();
    }
  });
}

// Had it counted from the first poll, or from each, that one would only say that nothing is there.
TEST(PolledLetters, AreLateByTheTimeSinceTheyWerePosted) {
  run_two(0ms, [](NodeLink& link, int rank, std::barrier<>&) {
    if (rank != 0) return;
    std::byte room{};
    const auto transfer = letter_to(1, 3, room, /*is_sent=*/false);
    or_throw(link.post(transfer));

    const auto done = link.is_done(transfer);

    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
    EXPECT_THAT(done.error().message(), HasSubstr("rank 1 did not come"));
  });
}

TEST(Exchanges, AreOverAfterTheTimeoutAndTheLateRankLearnsIt) {
  run_two(1ms, [](NodeLink& link, int rank, std::barrier<>& both) {
    const shm::Call call = shm::call_of(shm::CallKind::kBarrier, 0);
    const NodeLink::Outgoing out = {.to = 1 - rank};
    const NodeLink::Incoming in = {.from = 1 - rank};
    if (rank == 1) both.arrive_and_wait();
    const auto done = link.exchange(call, {&out, 1}, {&in, 1});
    const Error error = link.end(done ? Error(ErrorCode::kInternal, "no error") : done.error());
    if (rank == 0) both.arrive_and_wait();
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(error.message(), HasSubstr("rank 1 did not come within the timeout"));
    EXPECT_THAT(error.message(), testing::StartsWith(rank == 1 ? "rank 0 said: " : "rank 1 "));
  });
}

// Gloo itself waits for the next sender, whoever has gone.
TEST(Transfers, FromAnybodyAreOverWhenSomebodyHasEnded) {
  std::string said;
  run_two(1h, [&](NodeLink& link, int rank, std::barrier<>&) {
    if (rank == 1) {
      (void)link.end(Error(ErrorCode::kInvalidArgument, "no data"));
      return;
    }
    std::byte room{};
    const auto transfer = letter_to(shm::kAnyRank, 3, room, /*is_sent=*/false);
    or_throw(link.post(transfer));
    const auto done = link.wait(transfer);
    ASSERT_FALSE(done);
    said = link.end(done.error()).message();
  });
  EXPECT_EQ(said, "rank 1 said: no data");
}

// Rank 1 leaves first; rank 2 sends when rank 0 has looked around since.
TEST(Transfers, FromAnybodyComeAlsoWhenAnotherRankHasLeftInOrder) {
  run_linked(3, 1h, [](std::optional<NodeLink>& link, int rank, std::barrier<>& all) {
    if (rank == 1) link.reset();
    std::byte room{};
    const auto transfer = letter_to(rank == 0 ? shm::kAnyRank : 0, 3, room, rank == 2);
    if (rank == 0) {
      or_throw(link->post(transfer));
      const auto end = std::chrono::steady_clock::now() + 250ms;
      while (std::chrono::steady_clock::now() < end)
        EXPECT_FALSE(or_throw(link->is_done(transfer)));
    }
    all.arrive_and_wait();
    if (rank == 2) or_throw(link->post(transfer));
    if (rank != 1) or_throw(link->wait(transfer));
    EXPECT_TRUE(rank != 0 || transfer->peer == 2);
  });
}

TEST(Transfers, FromAnybodyAreOverWhenAllOthersHaveLeft) {
  run_linked(3, 1h, [](std::optional<NodeLink>& link, int rank, std::barrier<>&) {
    if (rank != 0) return link.reset();
    std::byte room{};
    const auto transfer = letter_to(shm::kAnyRank, 3, room, /*is_sent=*/false);
    or_throw(link->post(transfer));
    const auto done = link->wait(transfer);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code(), ErrorCode::kPeerLost);
  });
}

}  // namespace
}  // namespace accel::node_link_test
