// That backward, and nothing else, puts what is as large as a gradient into memory of all ranks, and that its blocks come back.

#include "libaccel/engine/gradients/gradient_room.h"

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <c10/core/CPUAllocator.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/custom_function.h>

#include <accel/state.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/rank_group.h"

namespace accel::gradient_room_test {
namespace {

constexpr std::size_t kBytes = 64 * 64 * sizeof(float);

at::Tensor parameter() {
  return at::randn({64, 64}).requires_grad_();
}

std::unique_ptr<GradientRoom> room_of(const std::vector<std::size_t>& sizes) {
  return GradientRoom::create(PartialState::process_group(), sizes);
}

TEST(GradientRoom, HasWhatBackwardComputesAndNothingThatIsComputedElsewhere) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes});
    ASSERT_NE(room, nullptr);
    const at::Tensor weight = parameter();

    const at::Tensor forward = weight * 3;
    EXPECT_FALSE(room->holds(forward));
    forward.sum().backward();

    EXPECT_TRUE(room->holds(weight.grad()));
    EXPECT_TRUE(weight.grad().eq(3).all().item<bool>());
    EXPECT_FALSE(room->holds(at::empty({64, 64})));
  });
}

TEST(GradientRoom, WhatFindsNoFreeBlockIsInOrdinaryMemory) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes});
    const at::Tensor first = parameter();
    const at::Tensor second = parameter();
    (first * 3).sum().backward();
    (second * 3).sum().backward();
    EXPECT_TRUE(room->holds(first.grad()));
    EXPECT_FALSE(room->holds(second.grad()));
    EXPECT_TRUE(room->holds(room->empty_like(first))) << "a new one";

    const void* const block = first.grad().const_data_ptr();
    first.mutable_grad().reset();
    std::vector<at::Tensor> taken;
    while (taken.empty() || taken.back().const_data_ptr() != block) {
      taken.push_back(room->empty_like(first));
      ASSERT_LT(taken.size(), 1000) << "the block has not come back";
    }
    EXPECT_EQ(taken.back().sizes(), first.sizes());
    EXPECT_TRUE(room->holds(taken.back()));
    EXPECT_FALSE(room->holds(taken.back().narrow(0, 0, 3))) << "it has the block not to itself";
  });
}

TEST(GradientRoom, BlocksAreLaidOutAsTheirParameter) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes, 8 * sizeof(double)});
    const at::Tensor turned = at::ones({8, 512}).t();
    EXPECT_EQ(room->empty_like(turned).strides(), turned.strides());
    const at::Tensor small = room->empty_like(at::ones({8}, at::kDouble));
    EXPECT_EQ(small.scalar_type(), at::kDouble);
    EXPECT_TRUE(small.zero_().eq(0).all().item<bool>());
  });
}

TEST(GradientRoom, AGradientOutlivesTheRoomAndNoOtherBackwardTakesItsBlocks) {
  test::run_ranks(2, [] {
    const PartialState state;
    auto room = room_of({kBytes, kBytes});
    const at::Tensor weight = parameter();
    (weight * 3).sum().backward();
    ASSERT_TRUE(room->holds(weight.grad()));
    const at::Tensor values = weight.grad().clone();
    const at::Tensor other = parameter();
    room.reset();

    (other * 3).sum().backward();

    EXPECT_TRUE(weight.grad().equal(values));
    weight.mutable_grad().reset();
    other.mutable_grad().reset();
    const auto next = room_of({kBytes});
    (other * 3).sum().backward();
    EXPECT_TRUE(next->holds(other.grad()));
  });
}

// As oneDNN does, which frees by the address alone.
class RawMemory final : public torch::autograd::Function<RawMemory> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    c10::Allocator* const allocator = c10::GetCPUAllocator();
    void* const block = allocator->raw_allocate(kBytes);
    void* const other = allocator->raw_allocate(kBytes + 1);
    allocator->raw_deallocate(other);
    allocator->raw_deallocate(block);
    return {gradients[0].clone()};
  }
};

TEST(GradientRoom, RawMemoryGoesBackWhereItCameFrom) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes});
    const at::Tensor weight = parameter();
    RawMemory::apply(weight).sum().backward();
    EXPECT_TRUE(room->holds(weight.grad())) << "the block was free again";
  });
}

// What a hook keeps for the next backward.
class KeptMemory final : public torch::autograd::Function<KeptMemory> {
 public:
  static inline at::Tensor kept;
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) {
    return input.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    const OrdinaryMemory stays;
    kept = at::empty({64, 64});
    return {gradients[0]};
  }
};

TEST(GradientRoom, WhatIsKeptFromOneBackwardToTheNextTakesNoBlock) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes});
    const at::Tensor weight = parameter();
    KeptMemory::apply(weight * 3).sum().backward();
    EXPECT_FALSE(room->holds(KeptMemory::kept));
    EXPECT_TRUE(room->holds(weight.grad()));
  });
}

TEST(GradientRoom, NobodyGetsABlockOfAClosedOne) {
  test::run_ranks(2, [] {
    const PartialState state;
    const auto room = room_of({kBytes});
    room->close();
    const at::Tensor weight = parameter();
    (weight * 3).sum().backward();
    EXPECT_FALSE(room->holds(weight.grad()));
  });
}

TEST(SeparateGradients, GivesTwoThatAutogradHasMadeOfOneMemoryAMemoryEach) {
  const at::Tensor left = at::ones({32, 64}).requires_grad_();
  const at::Tensor right = at::ones({64, 32}).requires_grad_();
  const std::vector<NamedParameter> parameters = {{"left", left}, {"right", right}};
  for (int step = 1; step <= 3; ++step) {
    ((left.view({-1}) + right.view({-1})) * 2.0).sum().backward();
    EXPECT_EQ(left.grad().is_alias_of(right.grad()), step == 1) << "else nothing is tested";
    separate_gradients(parameters);
    EXPECT_FALSE(left.grad().is_alias_of(right.grad()));
    EXPECT_TRUE(left.grad().eq(2.0 * step).all().item<bool>());
    EXPECT_TRUE(right.grad().eq(2.0 * step).all().item<bool>());
  }
}

TEST(GradientRoom, NobodyHasOneWhereARankWantsNone) {
  test::run_ranks(2, [] {
    const PartialState state;
    if (state.process_index() == 1) ::setenv("DDP_DISABLE_COMM_MEM", "1", 1);
    EXPECT_EQ(room_of({kBytes}), nullptr);
    EXPECT_EQ(room_of({}), nullptr);
  });
}

}  // namespace
}  // namespace accel::gradient_room_test
