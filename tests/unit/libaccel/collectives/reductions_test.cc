// Every reduction of every type through c10d, in one node and over two: each is what ATen makes of the ranks' tensors in the
// order of the ranks, and what is not defined is refused on all ranks, which go on.

#include <atomic>
#include <barrier>
#include <functional>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <accel/error.h>

#include "libaccel/collectives/node_layout.h"
#include "libaccel/collectives/shm/shm_group.h"
#include "libaccel/collectives/shm_backend.h"
#include "libaccel/collectives/two_level_group.h"
#include "libaccel/process/gloo_backend.h"

namespace accel {
namespace {

using ::testing::HasSubstr;
using Tensors = ShmBackend::Tensors;
using Op = c10d::ReduceOp::RedOpType;

// A rank as a thread, on the node of the layout; one node needs no second level.
std::unique_ptr<ShmBackend> join(const NodeLayout& layout,
                                 int rank,
                                 const std::vector<UniqueFd>& memories,
                                 const c10::intrusive_ptr<c10d::Store>& store) {
  const auto node = static_cast<std::size_t>(layout.node_of(rank));
  const shm::GroupShape shape = {.world_size = static_cast<int>(layout.nodes[0].size()),
                                 .slot_bytes = 8192};
  auto own_node = or_throw(shm::ShmGroup::join(
      memories[node],
      {.rank = layout.place_of(rank), .shape = shape, .names = layout.nodes[node]}));
  if (layout.num_nodes() == 1) return std::make_unique<ShmBackend>(std::move(own_node));
  const int world_size = layout.num_nodes() * shape.world_size;
  std::vector<int> names(static_cast<std::size_t>(world_size));
  std::iota(names.begin(), names.end(), 0);
  auto gloo = connect_gloo(store, {.rank = rank, .world_size = world_size, .is_one_machine = true});
  return std::make_unique<ShmBackend>(std::make_shared<TwoLevelGroup>(TwoLevelGroup::Parts{
                                          .rank = rank,
                                          .layout = layout,
                                          .names = names,
                                          .node = std::move(own_node),
                                          .link = std::make_shared<NodeLink>(std::move(gloo))}),
                                      "accel_two_level");
}

void run_ranks(const NodeLayout& layout, const std::function<void(ShmBackend&)>& body) {
  const int places = static_cast<int>(layout.nodes[0].size());
  std::vector<UniqueFd> memories;
  for (int node = 0; node < layout.num_nodes(); ++node)
    memories.push_back(
        or_throw(shm::GroupMemory::create({.world_size = places, .slot_bytes = 8192})));
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::barrier all_are_through(layout.num_nodes() * places);
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < layout.num_nodes() * places; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      const auto backend = join(layout, rank, memories, store);
      body(*backend);
      all_are_through.arrive_and_wait();
    });
  }
}

struct OpCase {
  Op op;
  const char* name;
  at::Tensor (*apply)(const at::Tensor&, const at::Tensor&);
  bool of_floats;
  bool of_whole_numbers;  // and of bool
};

const std::vector<OpCase>& operations() {
  using T = const at::Tensor&;
  static const std::vector<OpCase> all = {
      {Op::SUM, "sum", [](T a, T b) { return a + b; }, true, true},
      {Op::AVG, "average", [](T a, T b) { return a + b; }, true, false},
      {Op::PRODUCT, "product", [](T a, T b) { return a * b; }, true, true},
      {Op::MIN, "min", [](T a, T b) { return a.minimum(b); }, true, true},
      {Op::MAX, "max", [](T a, T b) { return a.maximum(b); }, true, true},
      {Op::BAND, "bitwise and", [](T a, T b) { return a.bitwise_and(b); }, false, true},
      {Op::BOR, "bitwise or", [](T a, T b) { return a.bitwise_or(b); }, false, true},
      {Op::BXOR, "bitwise xor", [](T a, T b) { return a.bitwise_xor(b); }, false, true},
  };
  return all;
}

constexpr at::ScalarType kTypes[] = {at::kFloat,
                                     at::kDouble,
                                     at::kHalf,
                                     at::kBFloat16,
                                     at::kChar,
                                     at::kByte,
                                     at::kShort,
                                     at::kInt,
                                     at::kLong,
                                     at::kBool};

// Whole numbers from -2 (0 without a sign) to 4, in which no two operations give the same; each result of up to four ranks
// is exact in every type.
at::Tensor input_of(int rank, at::ScalarType type, std::int64_t count) {
  const int lowest = type == at::kByte || type == at::kBool ? 0 : -2;
  return ((at::arange(count) + 3 * rank) % (5 - rank % 2) + lowest).to(type);
}

at::Tensor expected_of(const OpCase& operation, int size, at::ScalarType type, std::int64_t count) {
  // 16-bit numbers are rounded once, at the end.
  const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  at::Tensor result = input_of(0, type, count).to(wide);
  for (int rank = 1; rank < size; ++rank)
    result = operation.apply(result, input_of(rank, type, count).to(wide));
  if (operation.op == Op::AVG) result = result / size;
  return result.to(type);
}

bool is_defined(const OpCase& operation, at::ScalarType type) {
  return at::isFloatingType(type) ? operation.of_floats : operation.of_whole_numbers;
}

// Below and above what is sent whole, and no multiple of any number of ranks.
constexpr std::int64_t kCounts[] = {35, 20'003};

class Reductions : public ::testing::TestWithParam<NodeLayout> {
 protected:
  static int size() {
    return GetParam().num_nodes() * static_cast<int>(GetParam().nodes[0].size());
  }

  // act reduces each type's tensors by each operation and compares; what is not defined has to be refused.
  static void for_each_reduction(
      const std::function<void(ShmBackend&, const OpCase&, at::ScalarType, std::int64_t)>& act) {
    std::atomic<int> num_refused = 0;
    run_ranks(GetParam(), [&](ShmBackend& backend) {
      for (const OpCase& operation : operations()) {
        for (const at::ScalarType type : kTypes) {
          for (const std::int64_t count : kCounts) {
            SCOPED_TRACE(std::string(operation.name) + " of " + std::to_string(count) + " " +
                         at::toString(type));
            try {
              act(backend, operation, type, count);
              EXPECT_TRUE(is_defined(operation, type)) << "was taken";
            } catch (const Error& error) {
              EXPECT_FALSE(is_defined(operation, type)) << error.what();
              EXPECT_THAT(error.message(),
                          HasSubstr(std::string(operation.name) + " is not defined for"));
              ++num_refused;
            }
          }
        }
      }
    });
    // Of two counts: three bitwise operations of four types of floating point, and an average of six others.
    EXPECT_EQ(num_refused.load(), size() * 2 * (3 * 4 + 6));
  }
};

TEST_P(Reductions, OfAllReduceAreThoseOfAten) {
  for_each_reduction([](ShmBackend& backend, const OpCase& operation, auto type, auto count) {
    Tensors tensors = {input_of(backend.getRank(), type, count)};
    c10d::AllreduceOptions options;
    options.reduceOp = operation.op;
    backend.allreduce(tensors, options);
    EXPECT_TRUE(at::equal(tensors[0], expected_of(operation, size(), type, count)));
  });
}

TEST_P(Reductions, OfReduceAreThoseOfAtenAtTheRootAlone) {
  for_each_reduction([](ShmBackend& backend, const OpCase& operation, auto type, auto count) {
    const int root = static_cast<int>(type) % size();
    const at::Tensor own = input_of(backend.getRank(), type, count);
    Tensors tensors = {own.clone()};
    c10d::ReduceOptions options;
    options.reduceOp = operation.op;
    options.rootRank = root;
    backend.reduce(tensors, options);
    EXPECT_TRUE(at::equal(
        tensors[0], backend.getRank() == root ? expected_of(operation, size(), type, count) : own));
  });
}

TEST_P(Reductions, OfReduceScatterAreTheRanksPartsOfThoseOfAten) {
  for_each_reduction([](ShmBackend& backend, const OpCase& operation, auto type, auto count) {
    at::Tensor whole = input_of(backend.getRank(), type, count * size());
    at::Tensor part = at::zeros({count}, type);
    c10d::ReduceScatterOptions options;
    options.reduceOp = operation.op;
    backend._reduce_scatter_base(part, whole, options);
    const at::Tensor expected = expected_of(operation, size(), type, count * size());
    EXPECT_TRUE(at::equal(part, expected.narrow(0, backend.getRank() * count, count)));
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks,
                         Reductions,
                         ::testing::Values(NodeLayout{{{0, 1}}},
                                           NodeLayout{{{0, 1, 2}}},
                                           NodeLayout{{{0, 2}, {1, 3}}}),
                         [](const auto& info) { return "Layout" + std::to_string(info.index); });

// Were two of them equal for a type, an exchange of the two would be seen by no test above.
TEST(ReductionsOfAten, DifferForEachPairOfOperations) {
  for (const at::ScalarType type : kTypes) {
    if (type == at::kBool)
      continue;  // its sum and its maximum are its "or", its product and minimum its "and"
    for (const OpCase& one : operations()) {
      for (const OpCase& other : operations()) {
        if (one.op >= other.op || !is_defined(one, type) || !is_defined(other, type)) continue;
        EXPECT_FALSE(at::equal(expected_of(one, 2, type, 35), expected_of(other, 2, type, 35)))
            << one.name << " and " << other.name << " of " << at::toString(type);
      }
    }
  }
}

}  // namespace
}  // namespace accel
