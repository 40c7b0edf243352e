#include "libaccel/engine/collectives/shm_backend.h"

#include <functional>
#include <thread>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Generator.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/complex.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/imag.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sparse_coo_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/engine/shm/group/shm_group.h"

namespace accel::shm_backend_test {
namespace {

using ::testing::HasSubstr;
using Tensors = ShmBackend::Tensors;

// The ranks as threads, each with a backend.
void run_ranks(int world_size, const std::function<void(ShmBackend&)>& body) {
  const shm::GroupShape shape = {.world_size = world_size, .slot_bytes = 8192};
  const UniqueFd memory = or_throw(shm::GroupMemory::create(shape));
  std::vector<std::jthread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      at::set_num_threads(1);
      ShmBackend backend(or_throw(shm::ShmGroup::join(memory, {.rank = rank, .shape = shape})));
      body(backend);
    });
  }
}

// Another one on each rank; whole numbers, so that sums are exact in every type that can hold them.
at::Tensor input_of(int rank, at::ScalarType type = at::kFloat, std::int64_t rows = 7) {
  return (at::arange(rows * 5).reshape({rows, 5}) % 3 + rank % 3).to(type);
}

at::Tensor sum_of(int world_size, at::ScalarType type = at::kFloat, std::int64_t rows = 7) {
  at::Tensor sum = input_of(0, type, rows);
  for (int rank = 1; rank < world_size; ++rank) sum = sum + input_of(rank, type, rows);
  return sum.to(type);
}

std::string message_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class ShmBackendTest : public ::testing::TestWithParam<int> {};

TEST_P(ShmBackendTest, EveryTypeIsReducedAndItsFutureHoldsTheResult) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
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
      Tensors tensors = {input_of(backend.getRank(), type, 700)};
      const auto work = backend.allreduce(tensors, {});
      EXPECT_TRUE(work->wait());
      EXPECT_TRUE(work->isCompleted());
      EXPECT_TRUE(at::equal(tensors[0], sum_of(size, type, 700))) << at::toString(type);
      const at::Tensor held = work->getFuture()->value().toTensorVector().at(0);
      EXPECT_TRUE(held.is_same(tensors[0]));
    }
  });
}

TEST_P(ShmBackendTest, OperationsAreThoseOfC10d) {
  const int size = GetParam();
  const auto result = [&](c10d::ReduceOp::RedOpType op, at::ScalarType type) {
    at::Tensor out;
    run_ranks(size, [&](ShmBackend& backend) {
      c10d::AllreduceOptions options;
      options.reduceOp = op;
      Tensors tensors = {input_of(backend.getRank(), type)};
      backend.allreduce(tensors, options);
      if (backend.getRank() == 0) out = tensors[0];
    });
    return out;
  };
  at::Tensor low = input_of(0);
  at::Tensor high = input_of(0);
  at::Tensor product = input_of(0);
  at::Tensor bits = input_of(0, at::kInt);
  for (int rank = 1; rank < size; ++rank) {
    low = low.minimum(input_of(rank));
    high = high.maximum(input_of(rank));
    product = product * input_of(rank);
    bits = bits.bitwise_xor(input_of(rank, at::kInt));
  }
  EXPECT_TRUE(at::equal(result(c10d::ReduceOp::MIN, at::kFloat), low));
  EXPECT_TRUE(at::equal(result(c10d::ReduceOp::MAX, at::kFloat), high));
  EXPECT_TRUE(at::equal(result(c10d::ReduceOp::PRODUCT, at::kFloat), product));
  EXPECT_TRUE(at::equal(result(c10d::ReduceOp::BXOR, at::kInt), bits));
  EXPECT_TRUE(at::equal(result(c10d::ReduceOp::AVG, at::kFloat), sum_of(size) / size));
}

// Those of many bits beyond the signed ones; the other types are above.
TEST_P(ShmBackendTest, UnsignedNumbersAreReduced) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    for (const auto type : {at::kUInt16, at::kUInt32, at::kUInt64}) {
      Tensors tensors = {input_of(backend.getRank(), type)};
      backend.allreduce(tensors, {});
      EXPECT_TRUE(at::equal(tensors[0].to(at::kLong), sum_of(size, at::kLong)))
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

TEST_P(ShmBackendTest, AFactorIsMultipliedBeforeTheSum) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const c10d::ReduceOp halved = c10d::makeNCCLPreMulSum(0.5);
    const at::Tensor own = input_of(backend.getRank());
    const at::Tensor half = sum_of(size, at::kFloat) * 0.5;
    c10d::AllreduceOptions all;
    all.reduceOp = c10d::makeNCCLPreMulSum(at::full({1}, 0.5));
    Tensors tensors = {own.clone()};
    backend.allreduce(tensors, all);
    EXPECT_TRUE(at::equal(tensors[0], half));

    c10d::ReduceOptions at_one;
    at_one.reduceOp = halved;
    at_one.rootRank = size - 1;
    Tensors reduced = {own.clone()};
    backend.reduce(reduced, at_one);
    EXPECT_TRUE(at::equal(reduced[0], backend.getRank() == size - 1 ? half : own));

    c10d::ReduceScatterOptions scattered;
    scattered.reduceOp = halved;
    std::vector<Tensors> pieces = {Tensors(static_cast<std::size_t>(size), own)};
    Tensors piece = {at::empty_like(own)};
    backend.reduce_scatter(piece, pieces, scattered);
    EXPECT_TRUE(at::equal(piece[0], half));
    EXPECT_TRUE(at::equal(pieces[0][0], input_of(backend.getRank()))) << "inputs stay";
  });
}

TEST_P(ShmBackendTest, WhatIsNotReducedSaysWhatToDoInstead) {
  run_ranks(GetParam(), [&](ShmBackend& backend) {
    const auto said = [&](const at::Tensor& tensor, const c10d::ReduceOp& op) {
      try {
        c10d::AllreduceOptions options;
        options.reduceOp = op;
        Tensors tensors = {tensor};
        backend.allreduce(tensors, options);
      } catch (const Error& error) {
        return error.message() + "; " + error.remedy();
      }
      return std::string("no error");
    };
    const at::Tensor whole = at::ones({2}, at::kInt);
    EXPECT_EQ(
        said(at::ones({2}, at::kBool), c10d::ReduceOp::AVG),
        "average is not defined for bool; convert the tensor to whole numbers or floating-point "
        "ones first");
    EXPECT_THAT(said(at::ones({2}), c10d::ReduceOp::BXOR), HasSubstr("tensor.view()"));
    EXPECT_EQ(said(whole, c10d::makeNCCLPreMulSum(2.0)),
              "a factor before the sum is for floating-point tensors, not for Int; multiply the "
              "tensor and take SUM");
    const at::Tensor complex = at::ones({2}, at::kComplexFloat);
    EXPECT_EQ(
        said(complex, c10d::ReduceOp::MIN),
        "min is not defined for ComplexFloat: complex numbers have no order and no bits; gather "
        "them and compute the result from all, or reduce their real and imaginary parts");
    Tensors small = {at::ones({2}).to(at::kFloat8_e4m3fn)};
    EXPECT_THAT(said(small[0], c10d::ReduceOp::SUM), HasSubstr("convert them to float32 first"));
    // What moves data takes every type.
    small[0].view(at::kByte).fill_(backend.getRank());
    backend.broadcast(small, {});
    EXPECT_EQ(small[0].view(at::kByte).max().item<int>(), 0);
  });
}

TEST_P(ShmBackendTest, TensorsThatAreNotContiguousKeepTheirStrides) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const at::Tensor whole = at::zeros({5, 14});
    const at::Tensor view = whole.t().narrow(0, 0, 7);
    view.copy_(input_of(backend.getRank()));
    Tensors tensors = {view};
    backend.allreduce(tensors, {});
    EXPECT_TRUE(at::equal(view, sum_of(size)));
    EXPECT_TRUE(at::equal(whole.narrow(1, 7, 7), at::zeros({5, 7}))) << "beside the view";
    view.copy_(input_of(backend.getRank()));
    c10d::BroadcastOptions options;
    options.rootRank = size - 1;
    backend.broadcast(tensors, options);
    EXPECT_TRUE(at::equal(view, input_of(size - 1)));
  });
}

TEST_P(ShmBackendTest, ComplexNumbersAreSummed) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const at::Tensor real = input_of(backend.getRank());
    Tensors tensors = {at::complex(real, real * 2)};
    backend.allreduce(tensors, {});
    EXPECT_TRUE(at::equal(tensors[0], at::complex(sum_of(size), sum_of(size) * 2)));
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    EXPECT_THAT(message_of([&] { backend.allreduce(tensors, options); }), HasSubstr("complex"));
  });
}

TEST_P(ShmBackendTest, ComplexNumbersOf16BitsAreMultipliedInFloat) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const at::Tensor one = at::complex(at::ones({9}), at::ones({9}));
    Tensors tensors = {one.to(at::kComplexHalf)};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::PRODUCT;
    backend.allreduce(tensors, options);
    EXPECT_TRUE(at::equal(tensors[0].to(at::kComplexFloat), one.pow(size)));
  });
}

TEST_P(ShmBackendTest, AMonitoredBarrierPassesAndItsTimeoutHasToBeOne) {
  run_ranks(GetParam(), [&](ShmBackend& backend) {
    c10d::BarrierOptions options;
    backend.monitoredBarrier(options, true);
    options.timeout = std::chrono::minutes(1);
    backend.monitoredBarrier(options, false);
    options.timeout = std::chrono::milliseconds(0);
    EXPECT_THAT(message_of([&] { backend.monitoredBarrier(options, false); }),
                HasSubstr("is 0 ms, expected more than 0"));
  });
}

TEST_P(ShmBackendTest, ConjugatedAndNegatedViewsKeepTheirMeaning) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const at::Tensor real = input_of(backend.getRank());
    const at::Tensor conjugated = at::complex(real, real * 2).conj();
    const at::Tensor negated = at::imag(at::complex(real, real * 2).conj());  // -2 x, as a view
    ASSERT_TRUE(conjugated.is_conj() && negated.is_neg());
    Tensors first = {conjugated};
    backend.allreduce(first, {});
    EXPECT_TRUE(at::equal(conjugated.resolve_conj(), at::complex(sum_of(size), sum_of(size) * -2)));
    Tensors second = {negated};
    backend.broadcast(second, {});
    EXPECT_TRUE(at::equal(negated.resolve_neg(), input_of(0) * -2));
  });
}

TEST_P(ShmBackendTest, ParametersAreWrittenWithoutAHistory) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    for (const bool is_transposed : {false, true}) {
      at::Tensor parameter = input_of(backend.getRank()).clone();
      if (is_transposed) parameter = parameter.t();
      parameter.set_requires_grad(true);
      Tensors tensors = {parameter};
      backend.broadcast(tensors, {});
      backend.allreduce(tensors, {});
      const at::Tensor expected = input_of(0) * size;
      EXPECT_TRUE(at::equal(parameter.detach(), is_transposed ? expected.t() : expected));
      EXPECT_TRUE(parameter.is_leaf());
    }
  });
}

TEST_P(ShmBackendTest, SparseTensorsWithOtherEntriesOnEachRankAreSummed) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    // Rank r brings rows r and 5, and row 5 twice; the last rank of several brings nothing.
    const auto rows_of = [&](int rank) {
      const bool is_empty = size > 1 && rank == size - 1;
      return is_empty ? at::empty({1, 0}, at::kLong)
                      : at::tensor({rank, 5, 5}, at::kLong).reshape({1, 3});
    };
    const auto sparse_of = [&](int rank) {
      const at::Tensor rows = rows_of(rank);
      return at::sparse_coo_tensor(rows, at::full({rows.size(1), 2}, rank + 1.0), {6, 2});
    };
    at::Tensor expected = at::zeros({6, 2});
    for (int rank = 0; rank < size; ++rank) expected = expected + sparse_of(rank).to_dense();

    Tensors tensors = {sparse_of(backend.getRank())};
    backend.allreduce(tensors, {});

    EXPECT_TRUE(tensors[0].is_sparse());
    EXPECT_TRUE(at::equal(tensors[0].to_dense(), expected));
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::MAX;
    EXPECT_THAT(message_of([&] { backend.allreduce(tensors, options); }), HasSubstr("sparse"));
  });
}

TEST_P(ShmBackendTest, GathersPutRanksInOrder) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    Tensors inputs = {input_of(backend.getRank(), at::kDouble)};
    Tensors expected;
    for (int rank = 0; rank < size; ++rank) expected.push_back(input_of(rank, at::kDouble));
    const auto room = [&] {
      Tensors tensors;
      for (int rank = 0; rank < size; ++rank) tensors.push_back(at::zeros_like(inputs[0]));
      return tensors;
    };
    std::vector<Tensors> lists = {room()};
    backend.allgather(lists, inputs, {});
    for (int rank = 0; rank < size; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      EXPECT_TRUE(at::equal(lists[0][at], expected[at]));
    }
    at::Tensor flat = at::zeros({7 * size, 5}, at::kDouble);
    backend._allgather_base(flat, inputs[0], {});
    EXPECT_TRUE(at::equal(flat, at::cat(expected)));

    std::vector<Tensors> at_root;
    if (backend.getRank() == 0) at_root = {room()};
    backend.gather(at_root, inputs, {});
    if (backend.getRank() == 0) {
      EXPECT_TRUE(at::equal(at::cat(at_root[0]), at::cat(expected)));
    }
  });
}

TEST_P(ShmBackendTest, ReduceScatterAndScatterGiveEachRankItsPart) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    at::Tensor input = input_of(backend.getRank(), at::kFloat, 7 * size);
    at::Tensor output = at::zeros({7, 5});
    const at::Tensor expected =
        sum_of(size, at::kFloat, 7 * size).narrow(0, 7 * backend.getRank(), 7);
    backend._reduce_scatter_base(output, input, {});
    EXPECT_TRUE(at::equal(output, expected));

    Tensors outputs = {at::zeros({7, 5})};
    std::vector<Tensors> lists = {input.split(7)};
    backend.reduce_scatter(outputs, lists, {});
    EXPECT_TRUE(at::equal(outputs[0], expected));

    c10d::ScatterOptions options;
    options.rootRank = size - 1;
    std::vector<Tensors> from_root;
    if (backend.getRank() == size - 1) from_root = lists;
    backend.scatter(outputs, from_root, options);
    EXPECT_TRUE(at::equal(
        outputs[0], input_of(size - 1, at::kFloat, 7 * size).narrow(0, 7 * backend.getRank(), 7)));
  });
}

TEST_P(ShmBackendTest, AllToAllTransposesTheParts) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    at::Tensor input = input_of(backend.getRank(), at::kLong, 7 * size);
    at::Tensor output = at::zeros_like(input);
    Tensors expected;
    for (int rank = 0; rank < size; ++rank)
      expected.push_back(input_of(rank, at::kLong, 7 * size).narrow(0, 7 * backend.getRank(), 7));
    std::vector<std::int64_t> even;
    backend.alltoall_base(output, input, even, even, {});
    EXPECT_TRUE(at::equal(output, at::cat(expected)));
    std::vector<std::int64_t> uneven(static_cast<std::size_t>(size), 7);
    uneven.push_back(0);
    EXPECT_THAT(message_of([&] { backend.alltoall_base(output, input, uneven, even, {}); }),
                HasSubstr("splits with"));
  });
}

TEST_P(ShmBackendTest, AllToAllTakesSplitsAndListsOfAnySize) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    const int own = backend.getRank();
    // Rank r has r + k rows for rank k.
    std::vector<std::int64_t> input_splits;
    std::vector<std::int64_t> output_splits;
    Tensors expected;
    for (int rank = 0; rank < size; ++rank) {
      input_splits.push_back(own + rank);
      output_splits.push_back(rank + own);
      expected.push_back(at::full({rank + own, 3}, 10 * rank + own, at::kShort));
    }
    Tensors inputs;
    Tensors outputs;
    for (int rank = 0; rank < size; ++rank) {
      inputs.push_back(at::full({own + rank, 3}, 10 * own + rank, at::kShort));
      outputs.push_back(at::zeros({rank + own, 3}, at::kShort));
    }
    at::Tensor input = at::cat(inputs);
    at::Tensor output = at::zeros_like(at::cat(expected));

    backend.alltoall_base(output, input, output_splits, input_splits, {});
    backend.alltoall(outputs, inputs, {});

    EXPECT_TRUE(at::equal(output, at::cat(expected)));
    EXPECT_TRUE(at::equal(at::cat(outputs), at::cat(expected)));
  });
}

TEST_P(ShmBackendTest, MessagesGoAroundAndIntoViews) {
  const int size = GetParam();
  if (size == 1) GTEST_SKIP() << "nobody to write to";
  run_ranks(size, [&](ShmBackend& backend) {
    const int own = backend.getRank();
    const int before = (own + size - 1) % size;
    const at::Tensor whole = at::zeros({5, 14});
    Tensors received = {whole.t().narrow(0, 0, 7)};
    Tensors from_anybody = {at::zeros({7, 5})};
    Tensors sent = {input_of(own)};

    const auto first = backend.send(sent, (own + 1) % size, 1);
    const auto second = backend.send(sent, (own + 1) % size, 2);
    backend.recvAnysource(from_anybody, 2)->wait();
    const auto work = backend.recv(received, before, 1);
    work->wait();
    while (!first->isCompleted()) std::this_thread::yield();
    second->wait();

    EXPECT_TRUE(work->isCompleted());
    EXPECT_EQ(work->sourceRank(), before);
    EXPECT_TRUE(at::equal(received[0], input_of(before)));
    EXPECT_TRUE(at::equal(from_anybody[0], input_of(before)));
    EXPECT_TRUE(at::equal(whole.narrow(1, 7, 7), at::zeros({5, 7}))) << "beside the view";
  });
}

TEST_P(ShmBackendTest, ReduceGivesTheSumToTheRootAlone) {
  const int size = GetParam();
  run_ranks(size, [&](ShmBackend& backend) {
    Tensors tensors = {input_of(backend.getRank())};
    c10d::ReduceOptions options;
    options.rootRank = size - 1;
    backend.reduce(tensors, options);
    if (backend.getRank() == size - 1) {
      EXPECT_TRUE(at::equal(tensors[0], sum_of(size)));
    }
    backend.barrier({});
  });
}

TEST_P(ShmBackendTest, TensorsThatItAllocatesAreReducedAndOutliveIt) {
  const int size = GetParam();
  std::vector<at::Tensor> kept(static_cast<std::size_t>(size));
  run_ranks(size, [&](ShmBackend& backend) {
    EXPECT_EQ(backend.supportsTensorAlloc(-1), size > 1);
    for (const auto type : {at::kFloat, at::kBFloat16}) {
      const at::Tensor whole = backend.allocateTensor(50'000, type);
      EXPECT_EQ(whole.scalar_type(), type);
      const at::Tensor view = whole.narrow(0, 5, 35'000);  // as a part of a bucket
      view.copy_(input_of(backend.getRank(), type, 7'000).view({-1}));
      Tensors tensors = {view};
      backend.allreduce(tensors, {});
      EXPECT_TRUE(at::equal(view, sum_of(size, type, 7'000).view({-1})));
      kept[static_cast<std::size_t>(backend.getRank())] = view;
    }
  });
  for (const at::Tensor& view : kept)
    EXPECT_TRUE(at::equal(view, sum_of(size, at::kBFloat16, 7'000).view({-1})));
}

INSTANTIATE_TEST_SUITE_P(OfRanks, ShmBackendTest, ::testing::Values(1, 2, 3));

TEST(ShmBackendErrors, WhatDoesNotFitIsRefusedBeforeAnybodyWaits) {
  run_ranks(2, [](ShmBackend& backend) {
    Tensors two = {at::ones({2}), at::ones({2})};
    EXPECT_THAT(message_of([&] { backend.allreduce(two, {}); }), HasSubstr("one tensor"));
    at::Tensor output = at::ones({3});
    at::Tensor input = at::ones({2});
    EXPECT_THAT(message_of([&] { backend._allgather_base(output, input, {}); }),
                HasSubstr("3 elements for 2 ranks with 2 elements each"));
    Tensors meta = {at::empty({2}, at::TensorOptions().device(at::kMeta))};
    EXPECT_THAT(message_of([&] { backend.broadcast(meta, {}); }), HasSubstr("on the CPU"));
    Tensors floats = {at::ones({2})};
    c10d::AllreduceOptions options;
    options.reduceOp = c10d::ReduceOp::BAND;
    EXPECT_THAT(message_of([&] { backend.allreduce(floats, options); }),
                HasSubstr("bitwise and is not defined for float32"));
    backend.barrier({});
  });
}

TEST(ShmBackendErrors, RanksThatBringDifferentSizesAreToldSo) {
  std::vector<std::string> said(2);
  run_ranks(2, [&](ShmBackend& backend) {
    Tensors tensors = {at::ones({2 + backend.getRank()})};
    said[static_cast<std::size_t>(backend.getRank())] =
        message_of([&] { backend.allreduce(tensors, {}); });
  });
  EXPECT_THAT(said[0] + said[1], HasSubstr("all_reduce of 8 bytes"));
  EXPECT_THAT(said[0] + said[1], HasSubstr("all_reduce of 12 bytes"));
}

TEST(ShmBackendErrors, RanksThatBringDifferentTypesAreToldSo) {
  std::vector<std::string> said(2);
  run_ranks(2, [&](ShmBackend& backend) {
    Tensors tensors = {at::zeros({2}, backend.getRank() == 0 ? at::kFloat : at::kInt)};
    said[static_cast<std::size_t>(backend.getRank())] =
        message_of([&] { backend.broadcast(tensors, {}); });
  });
  for (const std::string& message : said) {
    EXPECT_THAT(message, HasSubstr("broadcast of 8 bytes of type Float, root 0"));
    EXPECT_THAT(message, HasSubstr("broadcast of 8 bytes of type Int, root 0"));
  }
}

}  // namespace
}  // namespace accel::shm_backend_test
