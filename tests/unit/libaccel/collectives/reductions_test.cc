// Every reduction of every type through c10d, in one node and over two: each is what ATen makes of the ranks' tensors in the
// order of the ranks, and what is not defined is refused on all ranks, which go on.

#include <atomic>
#include <functional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/real.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "libaccel/engine/collectives/node_layout.h"
#include "libaccel/engine/collectives/shm_backend.h"
#include "tests/support/backend_ranks.h"

namespace accel::reductions_test {
namespace {

using ::testing::HasSubstr;
using Tensors = ShmBackend::Tensors;
using Op = c10d::ReduceOp::RedOpType;
using test::run_backends;

struct OpCase {
  Op op;
  const char* name;
  at::Tensor (*apply)(const at::Tensor&, const at::Tensor&);
  bool of_floats;
  bool of_whole_numbers;
  bool of_bool;
  bool of_complex;
};

const std::vector<OpCase>& operations() {
  using T = const at::Tensor&;
  static const std::vector<OpCase> all = {
      {Op::SUM, "sum", [](T a, T b) { return a + b; }, true, true, true, true},
      {Op::AVG, "average", [](T a, T b) { return a + b; }, true, true, false, true},
      {Op::PRODUCT, "product", [](T a, T b) { return a * b; }, true, true, true, true},
      {Op::MIN, "min", [](T a, T b) { return a.minimum(b); }, true, true, true, false},
      {Op::MAX, "max", [](T a, T b) { return a.maximum(b); }, true, true, true, false},
      {Op::BAND,
       "bitwise and",
       [](T a, T b) { return a.bitwise_and(b); },
       false,
       true,
       true,
       false},
      {Op::BOR, "bitwise or", [](T a, T b) { return a.bitwise_or(b); }, false, true, true, false},
      {Op::BXOR,
       "bitwise xor",
       [](T a, T b) { return a.bitwise_xor(b); },
       false,
       true,
       true,
       false},
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
                                     at::kBool,
                                     at::kComplexFloat,
                                     at::kComplexDouble};

// Whole numbers from -2 (0 without a sign) to 4, in which no two operations give the same; each result of up to four ranks
// is exact in every type.
at::Tensor input_of(int rank, at::ScalarType type, std::int64_t count) {
  if (at::isComplexType(type)) {
    const at::Tensor parts = input_of(rank, c10::toRealValueType(type), count);
    return at::complex(parts, parts.flip({0}));
  }
  const int lowest = type == at::kByte || type == at::kBool ? 0 : -2;
  return ((at::arange(count) + 3 * rank) % (5 - rank % 2) + lowest).to(type);
}

// Of whole numbers cut off towards zero, of complex ones each part.
at::Tensor average_of(const at::Tensor& sum, int size) {
  if (at::isIntegralType(sum.scalar_type(), true)) return sum.div(size, "trunc");
  return sum.is_complex() ? at::complex(at::real(sum) / size, at::imag(sum) / size) : sum / size;
}

at::Tensor expected_of(const OpCase& operation, int size, at::ScalarType type, std::int64_t count) {
  // 16-bit numbers are rounded once, at the end.
  const at::ScalarType wide = at::isReducedFloatingType(type) ? at::kFloat : type;
  at::Tensor result = input_of(0, type, count).to(wide);
  for (int rank = 1; rank < size; ++rank)
    result = operation.apply(result, input_of(rank, type, count).to(wide));
  if (operation.op == Op::AVG) result = average_of(result, size);
  return result.to(type);
}

bool is_defined(const OpCase& operation, at::ScalarType type) {
  if (type == at::kBool) return operation.of_bool;
  if (at::isComplexType(type)) return operation.of_complex;
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
    run_backends(GetParam(), [&](ShmBackend& backend) {
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
    // Of two counts: three bitwise operations of four types of floating point, the average of bool, and of two complex types
    // what needs an order or bits.
    EXPECT_EQ(num_refused.load(), size() * 2 * (3 * 4 + 1 + 2 * 5));
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
}  // namespace accel::reductions_test
