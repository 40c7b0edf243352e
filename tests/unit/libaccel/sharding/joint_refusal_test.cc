// What one rank cannot divide is refused on all ranks at once, with the reason of that rank; models that are laid out
// differently are told apart though their sizes are equal.

#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/state.h>

#include "libaccel/engine/process/agreement.h"
#include "libaccel/engine/process/process_group.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"

namespace accel::joint_refusal_test {
namespace {

using test::error_of;
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

enum class Difference { kNone, kFrozenSize, kWhoIsFrozen, kBufferSize, kBufferType, kMoreBuffers };

// A trained weight, a frozen scale and a buffer.
struct MixedImpl : torch::nn::Module {
  explicit MixedImpl(Difference difference) {
    register_parameter("weight", at::ones({4}), /*requires_grad=*/true);
    register_parameter("scale",
                       at::ones({difference == Difference::kFrozenSize ? 3 : 2}),
                       /*requires_grad=*/difference == Difference::kWhoIsFrozen);
    register_buffer("mean",
                    at::ones({difference == Difference::kBufferSize ? 6 : 5},
                             difference == Difference::kBufferType ? at::kDouble : at::kFloat));
    if (difference == Difference::kMoreBuffers) register_buffer("more", at::ones({1}));
  }
  at::Tensor forward(const at::Tensor& input) { return input; }
};

enum class Way { kCopies, kFullShard, kZero1 };

AcceleratorOptions options_of(Way way) {
  AcceleratorOptions options;
  if (way == Way::kFullShard) options.fsdp_plugin = FullyShardedDataParallelPlugin{};
  if (way == Way::kZero1) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
  return options;
}

TEST(JointRefusal, WhatOneRankCannotDivideIsRefusedByAll) {
  test::run_ranks(3, [] {
    Accelerator accelerator(options_of(Way::kFullShard));
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
      jointly(
          [&] {
            if (is_culprit) throw std::runtime_error("no such thing");
          },
          PartialState::process_group().get(),
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

TEST(JointRefusal, AnErrorComesAsItWasTold) {
  const Error told =
      Error(ErrorCode::kShapeMismatch, "=two\nlines!", "cut it").while_doing("a test");
  const std::string text = outcome_text(told);

  const Error heard = outcome_of(text).error();
  const Error cut = outcome_of(std::string_view(text).substr(0, 10)).error();

  EXPECT_EQ(heard.code(), told.code());
  EXPECT_EQ(heard.message(), told.message());
  EXPECT_EQ(heard.remedy(), told.remedy());
  EXPECT_EQ(heard.context(), told.context());
  EXPECT_EQ(cut.code(), told.code());
  EXPECT_THAT(told.message(), StartsWith(cut.message()));
  EXPECT_EQ(*outcome_of(outcome_text(std::string("!no error"))), "!no error");
}

class JointRefusalOf : public ::testing::TestWithParam<Way> {};

// What preparing says when rank 1 alone has the difference.
std::string message_of(Difference difference) {
  Accelerator accelerator(options_of(JointRefusalOf::GetParam()));
  const bool is_culprit = test::rank_of_this_process() == 1;
  const auto net = std::make_shared<MixedImpl>(is_culprit ? difference : Difference::kNone);
  const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
  EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
  EXPECT_THAT(error.remedy(), HasSubstr("construct the same model on every rank"));
  return error.message();
}

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

TEST_P(JointRefusalOf, FrozenParametersAndBuffersThatDiffer) {
  test::run_ranks(3, [] {
    EXPECT_EQ(message_of(Difference::kFrozenSize),
              "the model of rank 1 has 'scale Float [3] frozen' where rank 0 has "
              "'scale Float [2] frozen' (parameter 1)");
    EXPECT_EQ(message_of(Difference::kWhoIsFrozen),
              "the model of rank 1 has 'scale Float [2]' where rank 0 has "
              "'scale Float [2] frozen' (parameter 1)");
    EXPECT_EQ(message_of(Difference::kBufferSize),
              "the model of rank 1 has 'mean Float [6] buffer' where rank 0 has "
              "'mean Float [5] buffer'");
    EXPECT_EQ(message_of(Difference::kBufferType),
              "the model of rank 1 has 'mean Double [5] buffer' where rank 0 has "
              "'mean Float [5] buffer'");
    EXPECT_EQ(message_of(Difference::kMoreBuffers),
              "the model of rank 1 has 'more Float [1] buffer' where rank 0 has nothing more");
    // The group goes on.
    Accelerator accelerator(options_of(GetParam()));
    std::ignore = accelerator.prepare(std::make_shared<MixedImpl>(Difference::kNone));
    accelerator.wait_for_everyone();
  });
}

// They are sent to nobody then.
TEST(JointRefusal, BuffersOfEachRanksOwnMayDiffer) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin = FullyShardedDataParallelPlugin{.sync_module_states = false};
    Accelerator accelerator(options);
    const auto own =
        test::rank_of_this_process() == 1 ? Difference::kBufferSize : Difference::kNone;
    const auto net = std::make_shared<MixedImpl>(own);
    std::ignore = accelerator.prepare(net);
    EXPECT_EQ(net->buffers()[0].numel(), test::rank_of_this_process() == 1 ? 6 : 5);
  });
}

std::string name_of(const ::testing::TestParamInfo<Way>& info) {
  if (info.param == Way::kCopies) return "Copies";
  return info.param == Way::kFullShard ? "FullShard" : "Zero1";
}

INSTANTIATE_TEST_SUITE_P(Ways,
                         JointRefusalOf,
                         ::testing::Values(Way::kCopies, Way::kFullShard, Way::kZero1),
                         name_of);

}  // namespace
}  // namespace accel::joint_refusal_test
