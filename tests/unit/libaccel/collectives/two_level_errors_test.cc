// Ranks of several nodes that call different things, and how ranks are put into nodes. The ranks: two_level_ranks.h.

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/two_level_ranks.h"

namespace accel::two_level_errors_test {
namespace {

using test::message_of;
using test::run_on_nodes;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using Tensors = ShmBackend::Tensors;

TEST(TwoLevelGroupErrors, RanksOfTwoNodesThatBringDifferentSizesAreToldSo) {
  std::vector<std::string> said(2);
  run_on_nodes({{{0}, {1}}}, [&](ShmBackend& backend) {
    Tensors tensors = {at::ones({2 + 20'000 * backend.getRank()})};
    said[static_cast<std::size_t>(backend.getRank())] =
        message_of([&] { backend.allreduce(tensors, {}); });
  });
  EXPECT_THAT(said[0] + said[1], HasSubstr("this rank calls all_reduce of 8 bytes"));
  EXPECT_THAT(said, Each(AnyOf(HasSubstr("calls all_reduce of"), HasSubstr("has ended or met"))));
}

TEST(TwoLevelGroupErrors, AMistakeInOneNodeEndsTheCallOfAllNodes) {
  std::vector<std::string> said(4);
  run_on_nodes({{{0, 1}, {2, 3}}}, [&](ShmBackend& backend) {
    const int own = backend.getRank();
    Tensors tensors = {at::ones({own == 3 ? 5 : 4})};
    said[static_cast<std::size_t>(own)] = message_of([&] { backend.allreduce(tensors, {}); });
    EXPECT_THAT(message_of([&] { backend.barrier({}); }), HasSubstr("error"))
        << "the group is over";
  });
  EXPECT_THAT(said[2] + said[3], HasSubstr("rank 3"));
  EXPECT_THAT(said, Each(HasSubstr("between 2 nodes with 2 ranks each")));
}

// A call with a root, `count` floats a rank. Rank 2 is on the second node, at the first place.
using RootedCall = std::function<void(ShmBackend&, int root, std::int64_t count)>;

const std::vector<std::pair<std::string, RootedCall>>& rooted_calls() {
  static const std::vector<std::pair<std::string, RootedCall>> calls = {
      {"broadcast",
       [](ShmBackend& backend, int root, std::int64_t count) {
         Tensors tensors = {at::ones({count})};
         c10d::BroadcastOptions options;
         options.rootRank = root;
         backend.broadcast(tensors, options);
       }},
      {"reduce",
       [](ShmBackend& backend, int root, std::int64_t count) {
         Tensors tensors = {at::ones({count})};
         c10d::ReduceOptions options;
         options.rootRank = root;
         backend.reduce(tensors, options);
       }},
      {"gather",
       [](ShmBackend& backend, int root, std::int64_t count) {
         Tensors inputs = {at::ones({count})};
         std::vector<Tensors> outputs;
         if (backend.getRank() == root)
           outputs.push_back(
               Tensors(static_cast<std::size_t>(backend.getSize()), at::zeros({count})));
         c10d::GatherOptions options;
         options.rootRank = root;
         backend.gather(outputs, inputs, options);
       }},
      {"scatter", [](ShmBackend& backend, int root, std::int64_t count) {
         Tensors outputs = {at::zeros({count})};
         std::vector<Tensors> inputs;
         if (backend.getRank() == root)
           inputs.push_back(
               Tensors(static_cast<std::size_t>(backend.getSize()), at::ones({count})));
         c10d::ScatterOptions options;
         options.rootRank = root;
         backend.scatter(outputs, inputs, options);
       }}};
  return calls;
}

// The ranks of either node agree among themselves, so nothing inside a node finds it; were it found by the timeout, this
// test would last half an hour.
TEST(TwoLevelGroupErrors, RootsThatDifferBetweenNodesAreNamedByEveryRank) {
  const std::vector<std::pair<int, int>> roots = {{0, 2}, {2, 0}, {0, 3}, {3, 0}};
  for (const auto& [name, call] : rooted_calls()) {
    for (const auto& [of_first, of_second] : roots) {
      for (const std::int64_t count : {3, 20'001}) {
        std::vector<std::string> said(4);
        run_on_nodes({{{0, 1}, {2, 3}}},
                     [&, first = of_first, second = of_second, run = call](ShmBackend& backend) {
                       const int own = backend.getRank();
                       said[static_cast<std::size_t>(own)] =
                           message_of([&] { run(backend, own < 2 ? first : second, count); });
                     });
        EXPECT_THAT(said,
                    Each(AllOf(HasSubstr("this rank calls " + name),
                               HasSubstr("root " + std::to_string(of_first)),
                               HasSubstr("root " + std::to_string(of_second)))))
            << name << " of " << count << " with roots " << of_first << " and " << of_second;
      }
    }
  }
}

TEST(TwoLevelGroupErrors, ANodeThatNamesAnotherRootThanTwoOthersIsToldOfByAll) {
  std::vector<std::string> said(6);
  run_on_nodes({{{0, 1}, {2, 3}, {4, 5}}}, [&](ShmBackend& backend) {
    const int own = backend.getRank();
    Tensors tensors = {at::ones({20'001})};
    c10d::BroadcastOptions options;
    options.rootRank = own < 4 ? 1 : 5;
    said[static_cast<std::size_t>(own)] = message_of([&] { backend.broadcast(tensors, options); });
  });
  EXPECT_THAT(said, Each(AllOf(HasSubstr("root 1"), HasSubstr("root 5"))));
}

TEST(TwoLevelGroupErrors, AnOperationThatIsNotDefinedIsRefusedBeforeAnybodyWaits) {
  run_on_nodes({{{0}, {1}}}, [&](ShmBackend& backend) {
    Tensors floats = {at::ones({2})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::BAND;
    EXPECT_THAT(message_of([&] { backend.allreduce(floats, options); }),
                HasSubstr("bitwise and is not defined for float32"));
    backend.barrier({});
  });
}

TEST(NodeLayout, GroupsRanksThatSayTheSame) {
  const NodeLayout layout = layout_of({"b", "a", "b", "a"});
  EXPECT_EQ(layout, (NodeLayout{{{0, 2}, {1, 3}}}));
  EXPECT_EQ(layout.node_of(3), 1);
  EXPECT_EQ(layout.place_of(3), 1);
  EXPECT_TRUE(layout.is_even());
  EXPECT_EQ(to_text(layout), "2 nodes with 2 ranks each");
  EXPECT_FALSE(layout_of({"a", "a", "b"}).is_even());
  EXPECT_EQ(to_text(layout_of({"a", "a", "b"})), "2 nodes with 2 and 1 ranks");
}

}  // namespace
}  // namespace accel::two_level_errors_test
