// The search for a batch size that fits, and memory that is given back.

#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <ATen/ops/ones.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/memory.h>

#include "tests/support/rank_group.h"

namespace accel::memory_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Property;
using ::testing::Throws;

TEST(FindExecutableBatchSize, TriesNineTenthsUntilItFitsAndReturnsTheResult) {
  std::vector<std::int64_t> tried;
  auto train = find_executable_batch_size(
      [&](std::int64_t batch_size, const std::string& name) {
        tried.push_back(batch_size);
        if (batch_size > 90) throw std::bad_alloc();
        return name + std::to_string(batch_size);
      },
      {.starting_batch_size = 128});

  EXPECT_EQ(train("size "), "size 82");
  EXPECT_THAT(tried, ElementsAre(128, 115, 103, 92, 82));
  EXPECT_EQ(train("again "), "again 82");
}

TEST(FindExecutableBatchSize, TakesTheSizesOfTheCaller) {
  std::int64_t size = 64;
  std::vector<std::int64_t> tried;
  find_executable_batch_size(
      [&](std::int64_t batch_size) {
        tried.push_back(batch_size);
        if (batch_size > 10)
          throw std::runtime_error("CUDA out of memory. Tried to allocate 2 GiB");
      },
      {.starting_batch_size = 64, .reduce_batch_size = [&] { return size /= 4; }})();

  EXPECT_THAT(tried, ElementsAre(64, 16, 4));
}

TEST(FindExecutableBatchSize, EndsAtZero) {
  auto train = find_executable_batch_size([](std::int64_t) { throw std::bad_alloc(); },
                                          {.starting_batch_size = 2});

  EXPECT_THAT([&] { train(); },
              Throws<Error>(Property(&Error::message,
                                     HasSubstr("No executable batch size found, reached zero."))));
}

TEST(FindExecutableBatchSize, LetsOtherErrorsPass) {
  int calls = 0;
  auto train = find_executable_batch_size([&](std::int64_t) {
    ++calls;
    throw std::runtime_error("the disk is full");
  });

  EXPECT_THROW(train(), std::runtime_error);
  EXPECT_EQ(calls, 1);
}

TEST(FindExecutableBatchSize, AllRanksTryAgainWhenOneWasShortOfMemory) {
  test::run_ranks(3, [] {
    Accelerator accelerator;
    std::vector<std::int64_t> tried;
    find_executable_batch_size(
        [&](std::int64_t batch_size) {
          tried.push_back(batch_size);
          if (accelerator.process_index() == 1 && batch_size > 8) throw std::bad_alloc();
        },
        {.starting_batch_size = 10})();

    EXPECT_THAT(tried, ElementsAre(10, 9, 8));
  });
}

TEST(FindExecutableBatchSize, NobodyHangsWhenTheOthersAreInTheMidstOfACollective) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(4, 2);
    auto model = accelerator.prepare(net);
    auto train = find_executable_batch_size([&](std::int64_t) {
      const at::Tensor loss = model(at::ones({2, 4})).sum();
      if (accelerator.process_index() == 1) throw std::bad_alloc();
      accelerator.backward(loss);
    });

    EXPECT_ANY_THROW(train());
  });
}

TEST(ShouldReduceBatchSize, KnowsWhatSaysThatMemoryIsShort) {
  EXPECT_TRUE(should_reduce_batch_size(std::bad_alloc()));
  EXPECT_TRUE(should_reduce_batch_size(Error(ErrorCode::kOutOfMemory, "full")));
  EXPECT_TRUE(should_reduce_batch_size(
      std::runtime_error("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9")));
  EXPECT_FALSE(should_reduce_batch_size(std::runtime_error("out of memory of the last epoch")));
  try {
    (void)at::empty({std::int64_t{1} << 60});
    ADD_FAILURE() << "2^62 bytes were there";
  } catch (const std::exception& error) {
    EXPECT_TRUE(should_reduce_batch_size(error)) << error.what();
  }
}

// The texts are those of accelerate.utils.convert_bytes 1.15.
TEST(ConvertBytes, WritesTheLargestUnitAsAccelerateDoes) {
  EXPECT_EQ(convert_bytes(0), "0 bytes");
  EXPECT_EQ(convert_bytes(1023), "1023 bytes");
  EXPECT_EQ(convert_bytes(1024), "1.0 KB");
  EXPECT_EQ(convert_bytes(1536), "1.5 KB");
  EXPECT_EQ(convert_bytes(123456789), "117.74 MB");
  EXPECT_EQ(convert_bytes(std::int64_t{5} << 40), "5.0 TB");
  EXPECT_EQ(convert_bytes(std::int64_t{3} << 60), "3072.0 PB");
}

TEST(ReleaseMemory, EmptiesWhatItIsGiven) {
  at::Tensor tensor = at::ones({4});
  torch::nn::Linear net(2, 2);
  auto pointer = std::make_shared<int>(3);

  release_memory(tensor, net, pointer);

  EXPECT_FALSE(tensor.defined());
  EXPECT_TRUE(net.is_empty());
  EXPECT_EQ(pointer, nullptr);
}

}  // namespace
}  // namespace accel::memory_test
