// Jobs of several nodes on one machine: each rank believes the launcher's word on which node it is.

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"

namespace accel::node_ranks_test {
namespace {

using test::be_on_node;
using ::testing::HasSubstr;

TEST(NodeRanks, MeetByNodesAndHavePartsOfTheirNodeAndAcross) {
  test::run_ranks(4, [] {
    const int rank = test::rank_of_this_process();
    be_on_node(rank % 2, 2, rank / 2, 2);  // not one after the other
    const PartialState state;
    EXPECT_EQ(state.backend(), "two_level");
    const auto group = PartialState::process_group();
    const std::vector<std::vector<int>> nodes = {{0, 2}, {1, 3}};
    EXPECT_EQ(group->layout().nodes, nodes);
    const auto node = group->part(rank % 2 == 0 ? std::vector{0, 2} : std::vector{1, 3});
    const auto across = group->part(rank / 2 == 0 ? std::vector{0, 1} : std::vector{2, 3});
    EXPECT_EQ(node->backend(), "shm");
    EXPECT_EQ(node->rank(), rank / 2);
    EXPECT_EQ(across->backend(), "two_level");
    EXPECT_EQ(across->rank(), rank % 2);
    const auto sum_in = [&](ProcessGroup& part) {
      at::Tensor sum = at::full({3}, 1 << (2 * rank), at::kLong);
      part.all_reduce_(sum, Reduction::kSum, "adding");
      return sum.const_data_ptr<std::int64_t>()[2];
    };
    for (int round = 0; round < 3; ++round) {
      EXPECT_EQ(sum_in(*group), 1 + 4 + 16 + 64);
      EXPECT_EQ(sum_in(*node), rank % 2 == 0 ? 1 + 16 : 4 + 64);
      EXPECT_EQ(sum_in(*across), rank / 2 == 0 ? 1 + 4 : 16 + 64);
    }
    const at::Tensor own = at::full({2}, rank, at::kInt);
    EXPECT_TRUE(
        at::equal(group->all_gather(own, "gathering").select(1, 0), at::arange(4, at::kInt)));
    group->c10d_group()->monitoredBarrier({}, true);
    group->barrier("leaving");
  });
}

TEST(NodeRanks, OfNodesWithUnequalNumbersGoThroughGlooAndSayWhy) {
  test::run_ranks(3, [] {
    const int rank = test::rank_of_this_process();
    be_on_node(rank / 2, 2, rank % 2, rank == 2 ? 1 : 2);
    const PartialState state;
    EXPECT_EQ(state.backend(), "gloo");
    const auto group = PartialState::process_group();
    EXPECT_EQ(group->layout().num_nodes(), 1);
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
    EXPECT_EQ(PartialState::process_group()->notice(), "");
  });
}

// A call of all ranks with `count` floats or more, over both nodes.
struct DeadlyCall {
  const char* name;
  void (*call)(ProcessGroup& group, std::int64_t count);
};

void reduce_to_last_but_one(ProcessGroup& group, std::int64_t count) {
  std::vector<at::Tensor> tensors = {at::ones({count})};
  c10d::ReduceOptions options;
  options.rootRank = group.size() - 2;
  group.c10d_group()->reduce(tensors, options)->wait();
}

void gather_to_rank_0(ProcessGroup& group, std::int64_t count) {
  std::vector<at::Tensor> inputs = {at::ones({count})};
  std::vector<std::vector<at::Tensor>> outputs;
  if (group.rank() == 0) {
    outputs.emplace_back();
    for (int rank = 0; rank < group.size(); ++rank) outputs[0].push_back(at::ones({count}));
  }
  group.c10d_group()->gather(outputs, inputs, {})->wait();
}

void scatter_from_rank_1(ProcessGroup& group, std::int64_t count) {
  std::vector<at::Tensor> outputs = {at::ones({count})};
  std::vector<std::vector<at::Tensor>> inputs;
  if (group.rank() == 1)
    inputs.emplace_back(static_cast<std::size_t>(group.size()), at::ones({count}));
  c10d::ScatterOptions options;
  options.rootRank = 1;
  group.c10d_group()->scatter(outputs, inputs, options)->wait();
}

void all_to_all(ProcessGroup& group, std::int64_t count) {
  at::Tensor input = at::ones({count * group.size()});
  at::Tensor output = at::empty_like(input);
  std::vector<std::int64_t> even;
  group.c10d_group()->alltoall_base(output, input, even, even)->wait();
}

// In a ring, so that each node's messages come from the other one and from itself.
void send_around(ProcessGroup& group, std::int64_t count) {
  std::vector<at::Tensor> sent = {at::ones({count})};
  std::vector<at::Tensor> received = {at::empty({count})};
  const int size = group.size();
  const auto sending = group.c10d_group()->send(sent, (group.rank() + 1) % size, 1);
  group.c10d_group()->recv(received, (group.rank() + size - 1) % size, 1)->wait();
  sending->wait();
}

const DeadlyCall kDeadlyCalls[] = {
    {"AllReduce",
     [](ProcessGroup& group, std::int64_t count) {
       at::Tensor values = at::ones({count});
       group.all_reduce_(values, Reduction::kSum, "adding");
     }},
    {"Broadcast",
     [](ProcessGroup& group, std::int64_t count) {
       at::Tensor values = at::ones({count});
       group.broadcast_(values, 1, "sending");
     }},
    {"AllGather",
     [](ProcessGroup& group, std::int64_t count) {
       (void)group.all_gather(at::ones({count}), "gathering");
     }},
    {"ReduceScatter",
     [](ProcessGroup& group, std::int64_t count) {
       at::Tensor input = at::ones({count * group.size()});
       at::Tensor output = at::empty({count});
       group.reduce_scatter(output, input, "adding parts");
     }},
    {"Barrier", [](ProcessGroup& group, std::int64_t) { group.barrier("waiting"); }},
    {"Reduce", reduce_to_last_but_one},
    {"Gather", gather_to_rank_0},
    {"Scatter", scatter_from_rank_1},
    {"AllToAll", all_to_all},
    {"SendAndReceive", send_around},
};

struct DeadlyJob {
  int num_ranks = 4;
  int num_nodes = 2;
  int dies = 3;
  bool rank_0_hosts_store = false;
};

// Calls until an error comes, whose message is printed.
void call_until_one_is_dead(const DeadlyCall& call, const DeadlyJob& job) {
  const int rank = test::rank_of_this_process();
  const int num_places = job.num_ranks / job.num_nodes;
  be_on_node(rank / num_places, job.num_nodes, rank % num_places, num_places);
  const PartialState state;
  EXPECT_EQ(state.backend(), "two_level");
  const auto group = PartialState::process_group();
  std::atomic<int> num_done = 0;
  std::jthread death;
  if (rank == job.dies) {
    death = std::jthread([&] {
      while (num_done.load() < 5) std::this_thread::yield();
      std::raise(SIGKILL);
    });
  }
  try {
    for (;; ++num_done) call.call(*group, 300'000);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    std::printf("%s\n", error.what());
  }
}

// The calls go on when it dies: it is at their beginning, in the middle, or between two, as it falls.
void expect_that_all_name_the_dead(const DeadlyCall& call, const DeadlyJob& job) {
  const auto exits =
      test::run_ranks(job.num_ranks,
                      [&] { call_until_one_is_dead(call, job); },
                      {.rank_0_hosts_store = job.rank_0_hosts_store, .expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  ASSERT_EQ(exits.size(), static_cast<std::size_t>(job.num_ranks));
  for (int rank = 0; rank < job.num_ranks; ++rank) {
    const test::RankExit& exit = exits[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exit.status, rank == job.dies ? 128 + SIGKILL : 0)
        << "rank " << rank << ": " << exit.output;
    if (rank == job.dies) continue;
    EXPECT_THAT(exit.output, HasSubstr("rank " + std::to_string(job.dies))) << "rank " << rank;
  }
}

class NodeRanksFault : public ::testing::TestWithParam<DeadlyCall> {};

TEST_P(NodeRanksFault, ADeadRankIsNamedOnAllNodes) {
  expect_that_all_name_the_dead(GetParam(), {});
}

INSTANTIATE_TEST_SUITE_P(Collectives,
                         NodeRanksFault,
                         ::testing::ValuesIn(kDeadlyCalls),
                         [](const auto& info) { return std::string(info.param.name); });

// Nobody shares memory with it.
TEST(NodeRanksAlone, ADeadRankThatWasAloneOnItsNodeIsNamed) {
  expect_that_all_name_the_dead({"Scatter", scatter_from_rank_1},
                                {.num_ranks = 3, .num_nodes = 3, .dies = 2});
}

TEST(NodeRanksAlone, ADeadRankThatHostedTheStoreIsNamed) {
  expect_that_all_name_the_dead({"Scatter", scatter_from_rank_1},
                                {.dies = 0, .rank_0_hosts_store = true});
}

}  // namespace
}  // namespace accel::node_ranks_test
