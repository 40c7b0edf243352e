// Jobs of several nodes on one machine: each rank believes the launcher's word on which node it is.

#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>

#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/state.h>

#include "libaccel/process/process_group.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"

namespace accel {
namespace {

using test::be_on_node;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST(NodeRanks, MeetByNodesAndHaveGroupsOfTheirNodeAndAcross) {
  test::run_ranks(4, [] {
    const int rank = test::rank_of_this_process();
    be_on_node(rank % 2, 2, rank / 2, 2);  // not one after the other
    const PartialState state;
    EXPECT_EQ(state.backend(), "two_level");
    const auto group = current_process_group();
    ASSERT_NE(group->node(), nullptr);
    EXPECT_EQ(group->node()->rank(), rank / 2);
    EXPECT_EQ(group->across()->rank(), rank % 2);
    const auto sum_in = [&](ProcessGroup& part) {
      at::Tensor sum = at::full({3}, 1 << (2 * rank), at::kLong);
      part.all_reduce_(sum, Reduction::kSum, "adding");
      return sum.const_data_ptr<std::int64_t>()[2];
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(sum_in(*group), 1 + 4 + 16 + 64);
      EXPECT_EQ(sum_in(*group->node()), rank % 2 == 0 ? 1 + 16 : 4 + 64);
      EXPECT_EQ(sum_in(*group->across()), rank / 2 == 0 ? 1 + 4 : 16 + 64);
    }
    const at::Tensor own = at::full({2}, rank, at::kInt);
    EXPECT_TRUE(
        at::equal(group->all_gather(own, "gathering").select(1, 0), at::arange(4, at::kInt)));
    group->barrier("leaving");
  });
}

TEST(NodeRanks, OfNodesWithUnequalNumbersGoThroughGlooAndSayWhy) {
  test::run_ranks(3, [] {
    const int rank = test::rank_of_this_process();
    be_on_node(rank / 2, 2, rank % 2, rank == 2 ? 1 : 2);
    const PartialState state;
    EXPECT_EQ(state.backend(), "gloo");
    const auto group = current_process_group();
    EXPECT_EQ(group->node(), nullptr);
    EXPECT_THAT(group->notice(), HasSubstr("2 nodes with 2 and 1 ranks"));
    at::Tensor sum = at::ones({3});
    group->all_reduce_(sum, Reduction::kSum, "adding");
    EXPECT_TRUE(at::equal(sum, at::full({3}, 3.0)));
    group->barrier("leaving");
  });
}

TEST(NodeRanks, TakeGlooWhenTheyAreToldTo) {
  test::run_ranks(2, [] {
    be_on_node(test::rank_of_this_process(), 2, 0, 1);
    PartialStateOptions options;
    options.init_process_group.backend = "gloo";
    const PartialState state(options);
    EXPECT_EQ(state.backend(), "gloo");
    EXPECT_EQ(current_process_group()->notice(), "");
  });
}

class NodeRanksFault : public ::testing::TestWithParam<std::string> {};

// Rank 3 of nodes {0, 1} and {2, 3} dies while collectives go on: beginning, in the middle, or between two, as it falls.
TEST_P(NodeRanksFault, ADeadRankIsAnErrorOnAllNodes) {
  const auto exits = test::run_ranks(4,
                                     [] {
                                       const int rank = test::rank_of_this_process();
                                       be_on_node(rank / 2, 2, rank % 2, 2);
                                       const PartialState state;
                                       const auto group = current_process_group();
                                       std::atomic<int> num_done = 0;
                                       std::jthread death;
                                       if (rank == 3) {
                                         death = std::jthread([&] {
                                           while (num_done.load() < 5) std::this_thread::yield();
                                           std::raise(SIGKILL);
                                         });
                                       }
                                       try {
                                         for (;;) {
                                           at::Tensor values = at::ones({300'000});
                                           if (NodeRanksFault::GetParam() == "AllReduce")
                                             group->all_reduce_(values, Reduction::kSum, "adding");
                                           if (NodeRanksFault::GetParam() == "Broadcast")
                                             group->broadcast_(values, 1, "sending");
                                           if (NodeRanksFault::GetParam() == "AllGather")
                                             (void)group->all_gather(values, "gathering");
                                           if (NodeRanksFault::GetParam() == "Barrier")
                                             group->barrier("waiting");
                                           ++num_done;
                                         }
                                       } catch (const Error& error) {
                                         EXPECT_EQ(error.code(), ErrorCode::kPeerLost)
                                             << error.what();
                                         std::printf("%s\n", error.what());
                                       }
                                     },
                                     {.expect_success = false});
  ASSERT_EQ(exits.size(), 4U);
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[3].status, 128 + SIGKILL) << exits[3].output;
  for (std::size_t rank = 0; rank < 3; ++rank)
    EXPECT_EQ(exits[rank].status, 0) << "rank " << rank << ": " << exits[rank].output;
  // On its node by its number, or by that of another node whose own link to it has closed.
  EXPECT_THAT(exits[2].output, AnyOf(HasSubstr("rank 3"), HasSubstr("rank 0"))) << exits[2].output;
  EXPECT_THAT(exits[1].output, AnyOf(HasSubstr("rank 3"), HasSubstr("rank 0"))) << exits[1].output;
}

INSTANTIATE_TEST_SUITE_P(Collectives,
                         NodeRanksFault,
                         ::testing::Values("AllReduce", "Broadcast", "AllGather", "Barrier"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace accel
