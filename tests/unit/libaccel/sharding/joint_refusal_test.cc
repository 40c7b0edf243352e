// What one rank cannot divide is refused on all ranks at once, with the reason of that rank; models that are laid out
// differently are told apart though their sizes are equal.

#include <functional>
#include <memory>
#include <stdexcept>
#include <tuple>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/process/joint_check.h"
#include "libaccel/process/process_group.h"
#include "tests/support/rank_group.h"

namespace accel {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

struct TwoImpl : torch::nn::Module {
  explicit TwoImpl(bool overlaps) {
    const at::Tensor memory = at::ones({12});
    register_parameter("low", memory.narrow(0, 0, 6).detach());
    register_parameter("high", overlaps ? memory.narrow(0, 2, 6).detach() : at::ones({6}));
  }
  at::Tensor forward(const at::Tensor& input) { return input; }
};

struct OneImpl : torch::nn::Module {
  explicit OneImpl(bool is_transposed) {
    register_parameter("weight", is_transposed ? at::ones({3, 2}).t() : at::ones({2, 3}));
  }
  at::Tensor forward(const at::Tensor& input) { return input; }
};

AcceleratorOptions options_of(bool is_sharded) {
  AcceleratorOptions options;
  if (is_sharded) options.fsdp_plugin = FullyShardedDataParallelPlugin{};
  return options;
}

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  return Error(ErrorCode::kInternal, "nothing was thrown");
}

TEST(JointRefusal, WhatOneRankCannotDivideIsRefusedByAll) {
  test::run_ranks(3, [] {
    Accelerator accelerator(options_of(true));
    const bool is_culprit = test::rank_of_this_process() == 1;
    const auto net = std::make_shared<TwoImpl>(is_culprit);
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(),
                AllOf(StartsWith(is_culprit ? "the parameters" : "rank 1: the parameters"),
                      HasSubstr("low and high are different tensors of one memory")));
    EXPECT_THAT(error.remedy(), HasSubstr("clone one of them"));
    // The group goes on: nobody waits for anybody.
    accelerator.wait_for_everyone();
    auto model = accelerator.prepare(std::make_shared<TwoImpl>(false));
  });
}

TEST(JointRefusal, WhatIsThrownByOtherLibrariesIsToldToo) {
  test::run_ranks(2, [] {
    const PartialState state;
    const bool is_culprit = test::rank_of_this_process() == 1;
    const auto check = [&] {
      check_together(
          [&] {
            if (is_culprit) throw std::runtime_error("no such thing");
          },
          *current_process_group(),
          "asking");
    };
    if (is_culprit) {
      EXPECT_THROW(check(), std::runtime_error);
    } else {
      const Error error = error_of(check);
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      EXPECT_THAT(error.message(), HasSubstr("rank 1: no such thing"));
    }
    state.wait_for_everyone();
  });
}

class JointRefusalOf : public ::testing::TestWithParam<bool> {};

TEST_P(JointRefusalOf, ParametersOfOtherStrides) {
  test::run_ranks(2, [] {
    Accelerator accelerator(options_of(GetParam()));
    const auto net = std::make_shared<OneImpl>(test::rank_of_this_process() == 1);
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
    EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
    EXPECT_EQ(error.message(),
              "the model of rank 1 has 'weight Float [2, 3] strides [1, 2]' where rank 0 has "
              "'weight Float [2, 3]' (parameter 0)");
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies, JointRefusalOf, ::testing::Bool(), [](const auto& info) {
  return info.param ? "FullShard" : "Copies";
});

}  // namespace
}  // namespace accel
