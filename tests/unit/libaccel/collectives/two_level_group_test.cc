// Collectives over nodes, of ranks as threads (two_level_ranks.h). As processes of a launched job: node_ranks_test.cc; what ranks are
// told that call different things: two_level_errors_test.cc.

#include "libaccel/engine/collectives/two_level_group.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/Generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/two_level_ranks.h"

namespace accel::two_level_group_test {
namespace {

using test::message_of;
using test::run_on_nodes;
using test::size_of;
using ::testing::HasSubstr;
using Tensors = ShmBackend::Tensors;

constexpr std::int64_t kFewRows = 7;
constexpr std::int64_t kManyRows =
    7001;  // more than what is sent whole, and no multiple of any number of ranks

// Another one on each rank; whole numbers, so that sums are exact in every type that can hold them.
at::Tensor input_of(int rank, at::ScalarType type = at::kFloat, std::int64_t rows = kFewRows) {
  return (at::arange(rows * 5).reshape({rows, 5}) % 3 + rank % 3).to(type);
}

at::Tensor sum_of(int world_size, at::ScalarType type, std::int64_t rows) {
  at::Tensor sum = input_of(0, type, rows);
  for (int rank = 1; rank < world_size; ++rank) sum = sum + input_of(rank, type, rows);
  return sum.to(type);
}

class TwoLevelGroupTest : public ::testing::TestWithParam<NodeLayout> {
 protected:
  const NodeLayout& layout() const { return GetParam(); }
  int size() const { return size_of(GetParam()); }
};

TEST_P(TwoLevelGroupTest, EveryTypeIsSummedWhateverItsSize) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    for (const std::int64_t rows : {std::int64_t{0}, kFewRows, kManyRows}) {
      for (const auto type : {at::kFloat,
                              at::kDouble,
                              at::kHalf,
                              at::kBFloat16,
                              at::kChar,
                              at::kByte,
                              at::kShort,
                              at::kInt,
                              at::kLong,
                              at::kBool}) {
        Tensors tensors = {input_of(backend.getRank(), type, rows)};
        const auto work = backend.allreduce(tensors, {});
        EXPECT_TRUE(work->wait());
        EXPECT_TRUE(at::equal(tensors[0], sum_of(size(), type, rows)))
            << at::toString(type) << " with " << rows << " rows";
      }
    }
  });
}

TEST_P(TwoLevelGroupTest, OperationsAreThoseOfC10d) {
  const auto expected = [&](c10d::ReduceOp::RedOpType op, at::ScalarType type, std::int64_t rows) {
    at::Tensor all = input_of(0, type, rows);
    for (int rank = 1; rank < size(); ++rank) {
      const at::Tensor next = input_of(rank, type, rows);
      if (op == c10d::ReduceOp::MIN) all = all.minimum(next);
      if (op == c10d::ReduceOp::MAX) all = all.maximum(next);
      if (op == c10d::ReduceOp::PRODUCT) all = all * next;
      if (op == c10d::ReduceOp::BXOR) all = all.bitwise_xor(next);
      if (op == c10d::ReduceOp::AVG) all = all + next;
    }
    return op == c10d::ReduceOp::AVG ? all / size() : all;
  };
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    for (const std::int64_t rows : {kFewRows, kManyRows}) {
      for (const auto& [op, type] :
           std::vector<std::pair<c10d::ReduceOp::RedOpType, at::ScalarType>>{
               {c10d::ReduceOp::MIN, at::kBFloat16},
               {c10d::ReduceOp::MAX, at::kFloat},
               {c10d::ReduceOp::PRODUCT, at::kFloat},
               {c10d::ReduceOp::BXOR, at::kInt},
               {c10d::ReduceOp::AVG, at::kDouble}}) {
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        Tensors tensors = {input_of(backend.getRank(), type, rows)};
        backend.allreduce(tensors, options);
        EXPECT_TRUE(at::equal(tensors[0], expected(op, type, rows))) << "operation " << int(op);
      }
    }
  });
}

// Numbers whose sum depends on the order: over the ranks of each node, then over the nodes.
TEST_P(TwoLevelGroupTest, SumsAreTakenInOneOrderEverywhere) {
  const auto values_of = [](int rank, std::int64_t rows) {
    return (at::arange(rows).to(at::kFloat) * 1.7 + 0.1 * (rank + 1)).sin();
  };
  for (const std::int64_t rows : {std::int64_t{99}, std::int64_t{50'001}}) {
    at::Tensor expected;
    for (const std::vector<int>& ranks : layout().nodes) {
      at::Tensor of_node = values_of(ranks[0], rows);
      for (std::size_t place = 1; place < ranks.size(); ++place)
        of_node = of_node + values_of(ranks[place], rows);
      expected = expected.defined() ? expected + of_node : of_node;
    }
    run_on_nodes(layout(), [&](ShmBackend& backend) {
      Tensors tensors = {values_of(backend.getRank(), rows)};
      backend.allreduce(tensors, {});
      EXPECT_TRUE(at::equal(tensors[0], expected)) << rows << " numbers";
    });
  }
}

// 256 + 1 is 256 in bfloat16: ones that are added one by one, or node by node, are lost.
TEST_P(TwoLevelGroupTest, SumsOfBfloat16AreRoundedOnce) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const float own = backend.getRank() == 0 ? 256.0F : 1.0F;
    const auto expected = at::full({3}, 256.0 + size() - 1, at::kBFloat16);
    Tensors tensors = {at::full({3}, own, at::kBFloat16)};
    backend.allreduce(tensors, {});
    EXPECT_TRUE(at::equal(tensors[0], expected));

    at::Tensor input = at::full({3 * size()}, own, at::kBFloat16);
    at::Tensor output = at::zeros({3}, at::kBFloat16);
    backend._reduce_scatter_base(output, input, {});
    EXPECT_TRUE(at::equal(output, expected));
  });
}

TEST_P(TwoLevelGroupTest, EveryRankCanBeTheRoot) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const int own = backend.getRank();
    for (const std::int64_t rows : {kFewRows, kManyRows}) {
      for (int root = 0; root < size(); ++root) {
        Tensors sent = {own == root ? input_of(root, at::kLong, rows)
                                    : at::zeros({rows, 5}, at::kLong)};
        c10d::BroadcastOptions broadcast;
        broadcast.rootRank = root;
        backend.broadcast(sent, broadcast);
        EXPECT_TRUE(at::equal(sent[0], input_of(root, at::kLong, rows))) << "broadcast";

        Tensors summed = {input_of(own, at::kHalf, rows)};
        c10d::ReduceOptions reduce;
        reduce.rootRank = root;
        backend.reduce(summed, reduce);
        EXPECT_TRUE(at::equal(
            summed[0],
            own == root ? sum_of(size(), at::kHalf, rows) : input_of(own, at::kHalf, rows)))
            << "reduce";

        Tensors inputs = {input_of(own, at::kInt, rows)};
        std::vector<Tensors> at_root;
        if (own == root) {
          at_root.emplace_back();
          for (int rank = 0; rank < size(); ++rank)
            at_root[0].push_back(at::zeros({rows, 5}, at::kInt));
        }
        c10d::GatherOptions gather;
        gather.rootRank = root;
        backend.gather(at_root, inputs, gather);
        for (int rank = 0; own == root && rank < size(); ++rank) {
          EXPECT_TRUE(
              at::equal(at_root[0][static_cast<std::size_t>(rank)], input_of(rank, at::kInt, rows)))
              << "gather";
        }
        c10d::ScatterOptions scatter;
        scatter.rootRank = root;
        Tensors part = {at::zeros({rows, 5}, at::kInt)};
        backend.scatter(part, at_root, scatter);
        EXPECT_TRUE(at::equal(part[0], input_of(own, at::kInt, rows))) << "scatter";
      }
    }
  });
}

TEST_P(TwoLevelGroupTest, GathersAndScattersPutRanksInOrder) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const int own = backend.getRank();
    for (const std::int64_t rows : {kFewRows, kManyRows}) {
      at::Tensor input = input_of(own, at::kDouble, rows);
      at::Tensor all = at::zeros({rows * size(), 5}, at::kDouble);
      backend._allgather_base(all, input, {});
      Tensors expected;
      for (int rank = 0; rank < size(); ++rank)
        expected.push_back(input_of(rank, at::kDouble, rows));
      EXPECT_TRUE(at::equal(all, at::cat(expected)));

      at::Tensor whole = input_of(own, at::kFloat, rows * size());
      at::Tensor part = at::zeros({rows, 5});
      backend._reduce_scatter_base(part, whole, {});
      EXPECT_TRUE(
          at::equal(part, sum_of(size(), at::kFloat, rows * size()).narrow(0, rows * own, rows)));
    }
  });
}

TEST_P(TwoLevelGroupTest, AllToAllTakesSplitsOfAnySize) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const int own = backend.getRank();
    // Rank r has 2000 (r + k) rows for rank k, so none for itself when it is rank 0.
    std::vector<std::int64_t> splits;
    Tensors inputs;
    Tensors expected;
    for (int rank = 0; rank < size(); ++rank) {
      splits.push_back(2000 * (own + rank));
      inputs.push_back(at::full({splits.back(), 3}, 10 * own + rank, at::kShort));
      expected.push_back(at::full({splits.back(), 3}, 10 * rank + own, at::kShort));
    }
    at::Tensor input = at::cat(inputs);
    at::Tensor output = at::zeros_like(input);

    backend.alltoall_base(output, input, splits, splits, {});

    EXPECT_TRUE(at::equal(output, at::cat(expected)));
  });
}

TEST_P(TwoLevelGroupTest, MessagesGoAroundBesideCollectives) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const int own = backend.getRank();
    const int before = (own + size() - 1) % size();
    Tensors received = {at::zeros({kManyRows, 5})};
    Tensors from_anybody = {at::zeros({kFewRows, 5})};
    Tensors many = {input_of(own, at::kFloat, kManyRows)};
    Tensors few = {input_of(own)};

    const auto first = backend.send(many, (own + 1) % size(), 1);
    const auto second = backend.send(few, (own + 1) % size(), 2);
    backend.barrier({});
    backend.recvAnysource(from_anybody, 2)->wait();
    const auto work = backend.recv(received, before, 1);
    work->wait();
    first->wait();
    second->wait();

    EXPECT_EQ(work->sourceRank(), before);
    EXPECT_TRUE(at::equal(received[0], input_of(before, at::kFloat, kManyRows)));
    EXPECT_TRUE(at::equal(from_anybody[0], input_of(before)));
    EXPECT_THAT(message_of([&] { backend.send(few, before, INT32_MAX); }), HasSubstr("tag"));
  });
}

TEST_P(TwoLevelGroupTest, MessagesMayBePolled) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const int own = backend.getRank();
    const int before = (own + size() - 1) % size();
    Tensors received = {at::zeros({kManyRows, 5})};
    Tensors nothing = {at::zeros({kFewRows, 5})};
    Tensors many = {input_of(own, at::kFloat, kManyRows)};
    const auto never = backend.recv(nothing, before, 2);  // the group ends all the same
    const auto work = backend.recv(received, before, 1);
    EXPECT_FALSE(work->isCompleted());
    backend.barrier({});
    const auto sent = backend.send(many, (own + 1) % size(), 1);
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!(work->isCompleted() && sent->isCompleted())) {
      ASSERT_LT(std::chrono::steady_clock::now(), deadline);
      std::this_thread::yield();
    }
    work->wait();
    EXPECT_TRUE(at::equal(received[0], input_of(before, at::kFloat, kManyRows)));
    EXPECT_FALSE(never->isCompleted());
  });
}

// Those of many bits beyond the signed ones; the other types are above.
TEST_P(TwoLevelGroupTest, UnsignedNumbersAreReduced) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    for (const auto type : {at::kUInt16, at::kUInt32, at::kUInt64}) {
      Tensors tensors = {input_of(backend.getRank(), type)};
      backend.allreduce(tensors, {});
      EXPECT_TRUE(at::equal(tensors[0].to(at::kLong), sum_of(size(), at::kLong, kFewRows)))
          << at::toString(type);
      // The largest of all, which is -1 of the signed type, on rank 0 alone.
      Tensors most = {at::full({3}, backend.getRank() == 0 ? -1 : 1, at::kLong).to(type)};
      const at::Tensor expected = at::full({3}, -1, at::kLong).to(type).to(at::kLong);
      c10d::AllreduceOptions options;
      options.reduceOp = c10d::ReduceOp::MAX;
      backend.allreduce(most, options);
      EXPECT_TRUE(at::equal(most[0].to(at::kLong), expected)) << at::toString(type);
    }
  });
}

TEST_P(TwoLevelGroupTest, AFactorIsMultipliedBeforeTheSum) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const c10d::ReduceOp halved = c10d::makeNCCLPreMulSum(0.5);
    const at::Tensor own = input_of(backend.getRank());
    const at::Tensor half = sum_of(size(), at::kFloat, kFewRows) * 0.5;
    c10d::AllreduceOptions all;
    all.reduceOp = c10d::makeNCCLPreMulSum(at::full({1}, 0.5));
    Tensors tensors = {own.clone()};
    backend.allreduce(tensors, all);
    EXPECT_TRUE(at::equal(tensors[0], half));

    c10d::ReduceOptions at_one;
    at_one.reduceOp = halved;
    at_one.rootRank = size() - 1;
    Tensors reduced = {own.clone()};
    backend.reduce(reduced, at_one);
    EXPECT_TRUE(at::equal(reduced[0], backend.getRank() == size() - 1 ? half : own));

    c10d::ReduceScatterOptions scattered;
    scattered.reduceOp = halved;
    std::vector<Tensors> pieces = {Tensors(static_cast<std::size_t>(size()), own)};
    Tensors piece = {at::empty_like(own)};
    backend.reduce_scatter(piece, pieces, scattered);
    EXPECT_TRUE(at::equal(piece[0], half));
    EXPECT_TRUE(at::equal(pieces[0][0], input_of(backend.getRank()))) << "inputs stay";
  });
}

TEST_P(TwoLevelGroupTest, ComplexAndSparseTensorsAreSummed) {
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    const at::Tensor real = input_of(backend.getRank());
    Tensors complex = {at::complex(real, real * 2)};
    backend.allreduce(complex, {});
    const at::Tensor sum = sum_of(size(), at::kFloat, kFewRows);
    EXPECT_TRUE(at::equal(complex[0], at::complex(sum, sum * 2)));

    const at::Tensor row = at::full({1, 1}, backend.getRank(), at::kLong);
    Tensors sparse = {at::sparse_coo_tensor(row, at::ones({1, 2}), {size(), 2})};
    backend.allreduce(sparse, {});
    EXPECT_TRUE(at::equal(sparse[0].to_dense(), at::ones({size(), 2})));
  });
}

TEST_P(TwoLevelGroupTest, NobodyLeavesABarrierBeforeAllHaveCome) {
  std::atomic<int> num_come = 0;
  run_on_nodes(layout(), [&](ShmBackend& backend) {
    for (int round = 1; round <= 20; ++round) {
      ++num_come;
      backend.barrier({});
      EXPECT_GE(num_come.load(), round * size());
      backend.barrier({});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(OfNodes,
                         TwoLevelGroupTest,
                         ::testing::Values(NodeLayout{{{0}, {1}}},
                                           NodeLayout{{{0, 1}, {2, 3}}},
                                           NodeLayout{{{0, 2}, {1, 3}}},
                                           NodeLayout{{{0, 4}, {1, 3}, {2, 5}}}),
                         [](const auto& info) { return "Layout" + std::to_string(info.index); });

}  // namespace
}  // namespace accel::two_level_group_test
