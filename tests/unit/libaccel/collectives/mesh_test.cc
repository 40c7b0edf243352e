// The grid of the ranks: who is along an axis, and the groups that are made of it.

#include "libaccel/engine/process/mesh.h"

#include <algorithm>
#include <csignal>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"

namespace accel::mesh_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr MeshAxis kAxes[] = {MeshAxis::kPipeline,
                              MeshAxis::kReplicate,
                              MeshAxis::kShard,
                              MeshAxis::kContext,
                              MeshAxis::kSequence,
                              MeshAxis::kTensor,
                              MeshAxis::kData};

// All whose product is `num_ranks`.
std::vector<MeshShape> shapes_of(int num_ranks) {
  std::vector<MeshShape> shapes;
  const auto divisors = [](int number) {
    std::vector<int> found;
    for (int divisor = 1; divisor <= number; ++divisor) {
      if (number % divisor == 0) found.push_back(divisor);
    }
    return found;
  };
  for (const int pipeline : divisors(num_ranks)) {
    const int stage = num_ranks / pipeline;
    for (const int replicate : divisors(stage)) {
      for (const int shard : divisors(stage / replicate)) {
        const int rest = stage / replicate / shard;
        for (const int context : divisors(rest)) {
          for (const int sequence : divisors(rest / context)) {
            shapes.push_back({.pipeline = pipeline,
                              .replicate = replicate,
                              .shard = shard,
                              .context = context,
                              .sequence = sequence,
                              .tensor = rest / context / sequence});
          }
        }
      }
    }
  }
  return shapes;
}

TEST(MeshShape, LastAxisIsTheFastest) {
  const MeshShape shape = {.pipeline = 2, .replicate = 2, .shard = 3, .tensor = 2};

  EXPECT_THAT(shape.along(MeshAxis::kTensor, 9), ElementsAre(8, 9));
  EXPECT_THAT(shape.along(MeshAxis::kShard, 9), ElementsAre(7, 9, 11));
  EXPECT_THAT(shape.along(MeshAxis::kReplicate, 9), ElementsAre(3, 9));
  EXPECT_THAT(shape.along(MeshAxis::kData, 9), ElementsAre(1, 3, 5, 7, 9, 11));
  EXPECT_THAT(shape.along(MeshAxis::kPipeline, 9), ElementsAre(9, 21));
  EXPECT_THAT(shape.along(MeshAxis::kContext, 9), ElementsAre(9));
}

TEST(MeshShape, EachAxisDividesAllPositionsIntoParts) {
  for (const int num_ranks : {1, 2, 4, 6, 12, 16, 24}) {
    for (const MeshShape& shape : shapes_of(num_ranks)) {
      ASSERT_EQ(shape.num_ranks(), num_ranks);
      for (const MeshAxis axis : kAxes) {
        for (int position = 0; position < num_ranks; ++position) {
          const std::vector<int> along = shape.along(axis, position);
          ASSERT_EQ(std::ssize(along), shape.size(axis));
          ASSERT_EQ(std::count(along.begin(), along.end(), position), 1);
          for (const int other : along) ASSERT_EQ(shape.along(axis, other), along);
        }
      }
    }
  }
}

// Two positions are apart in exactly one way: what is along different axes has one position in common.
TEST(MeshShape, AxesMeetInOnePosition) {
  for (const MeshShape& shape : shapes_of(24)) {
    for (int position = 0; position < 24; ++position) {
      std::set<int> seen;
      for (const MeshAxis axis : kAxes) {
        if (axis == MeshAxis::kData) continue;
        for (const int other : shape.along(axis, position)) {
          if (other != position) {
            ASSERT_TRUE(seen.insert(other).second);
          }
        }
      }
    }
  }
}

// Whom this rank finds in the group, by the group's ranks.
std::vector<int> ranks_in(ProcessGroup& group, int own) {
  const at::Tensor all = group.all_gather(at::full({}, own, at::kInt), "looking around");
  return {all.const_data_ptr<int>(), all.const_data_ptr<int>() + all.numel()};
}

// Along all axes, with the ranks `order` by position.
void expect_groups(const std::shared_ptr<ProcessGroup>& world,
                   const MeshShape& shape,
                   const std::vector<int>& order) {
  Mesh mesh(world, shape);
  const auto position = std::find(order.begin(), order.end(), world->rank()) - order.begin();
  for (const MeshAxis axis : kAxes) {
    ProcessGroup& group = *mesh.group(axis);
    std::vector<int> expected;
    for (const int other : shape.along(axis, static_cast<int>(position)))
      expected.push_back(order[static_cast<std::size_t>(other)]);
    if (std::ssize(expected) == world->size()) {
      EXPECT_EQ(&group, world.get());
      std::sort(expected.begin(), expected.end());
    }
    EXPECT_EQ(ranks_in(group, world->rank()), expected) << static_cast<int>(axis);
    EXPECT_EQ(expected[static_cast<std::size_t>(group.rank())], world->rank());
    EXPECT_EQ(group.device(), world->device());
  }
}

TEST(Mesh, OfOneNodeHasTheGroupsOfEachShape) {
  test::run_ranks(4, [] {
    const PartialState state;
    for (const MeshShape& shape : shapes_of(4))
      expect_groups(state.process_group(), shape, {0, 1, 2, 3});
  });
}

TEST(Mesh, ThroughGlooHasTheSameGroups) {
  test::run_ranks(4, [] {
    const PartialState state({.init_process_group = {.backend = "gloo"}});
    for (const MeshShape& shape :
         {MeshShape{.replicate = 2, .shard = 2}, MeshShape{.pipeline = 2, .tensor = 2}}) {
      expect_groups(state.process_group(), shape, {0, 1, 2, 3});
    }
  });
}

// What is innermost stays inside a node, also where the ranks do not lie there one after the other.
TEST(Mesh, OfSeveralNodesTakesThemOneByOne) {
  test::run_ranks(8, [] {
    const int rank = test::rank_of_this_process();
    test::be_on_node(rank % 2, 2, rank / 2, 4);
    const PartialState state;
    for (const MeshShape& shape : {MeshShape{.replicate = 2, .shard = 4},
                                   MeshShape{.replicate = 2, .shard = 2, .tensor = 2},
                                   MeshShape{.replicate = 4, .tensor = 2},
                                   MeshShape{.pipeline = 2, .shard = 4},
                                   MeshShape{.shard = 8}}) {
      expect_groups(state.process_group(), shape, {0, 2, 4, 6, 1, 3, 5, 7});
    }
    EXPECT_EQ(Mesh(state.process_group(), {.replicate = 4, .tensor = 2})
                  .group(MeshAxis::kTensor)
                  ->backend(),
              "shm");
  });
}

// An axis of which one group has more ranks on one node than on another goes through Gloo there.
TEST(Mesh, MayDivideNodesUnevenly) {
  test::run_ranks(6, [] {
    const int rank = test::rank_of_this_process();
    test::be_on_node(rank / 3, 2, rank % 3, 3);
    const PartialState state;
    expect_groups(state.process_group(), {.replicate = 3, .shard = 2}, {0, 1, 2, 3, 4, 5});
  });
}

TEST(Mesh, DividesModelsByTheAxesThatSayIt) {
  test::run_ranks(4, [] {
    const PartialState state;
    const auto world = state.process_group();
    Mesh both(world, {.shard = 2, .tensor = 2});
    Mesh copies(world, {.replicate = 4});

    EXPECT_THAT(both.dividing_groups(),
                ElementsAre(both.group(MeshAxis::kShard), both.group(MeshAxis::kTensor)));
    EXPECT_TRUE(copies.dividing_groups().empty());
    EXPECT_EQ(copies.group(MeshAxis::kData), world);
    EXPECT_EQ(copies.group(MeshAxis::kShard)->size(), 1);
  });
}

TEST(Mesh, NamesTheDeadByItsNumberInTheJob) {
  const auto exits = test::run_ranks(
      4,
      [] {
        const PartialState state;
        Mesh mesh(state.process_group(), {.replicate = 2, .shard = 2});
        if (state.process_index() == 3) std::raise(SIGKILL);
        if (state.process_index() != 2) return;
        const Error error =
            test::error_of([&] { mesh.group(MeshAxis::kShard)->barrier("waiting"); });
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(error.message(), HasSubstr("rank 3 (process"));
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  for (int rank = 0; rank < 3; ++rank) {
    const test::RankExit& exit = exits[static_cast<std::size_t>(rank)];
    EXPECT_EQ(exit.status, 0) << exit.output;
  }
}

TEST(Mesh, RefusesAxesThatDoNotMakeTheJob) {
  test::run_ranks(2, [] {
    const PartialState state;
    for (const MeshShape& shape : {MeshShape{.shard = 2, .tensor = 2},
                                   MeshShape{},
                                   MeshShape{.replicate = -1, .shard = -2}}) {
      const Error error = test::error_of([&] { Mesh(state.process_group(), shape); });
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.message(), HasSubstr("do not make the 2 ranks"));
    }
  });
}

}  // namespace
}  // namespace accel::mesh_test
