// That the buckets of ranks which share memory give the bits of c10d::Reducer, which views are off for, and leave users'
// gradients alone.

#include <cstddef>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/mapped_memory.h"
#include "tests/support/rank_group.h"

namespace accel::gradient_buckets_test {
namespace {

using ::testing::HasSubstr;

// Parameters of two types, a tied one, one without elements, one whose memory is not in order, and two heads.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(9);
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 3));
    third = register_module("third", torch::nn::Linear(8, 5));
    tied = register_parameter("tied", first->weight);
    wide = register_parameter("wide", at::randn({8}, at::kDouble));
    empty = register_parameter("empty", at::randn({0, 3}));
    turned = register_parameter("turned", at::randn({3, 8}).t());
  }
  at::Tensor hidden(const at::Tensor& input) {
    return (at::matmul(first(input).tanh(), turned.matmul(turned.t())) * wide).to(at::kFloat);
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor inner = hidden(input);
    return second(inner).square().mean() + third(inner).sin().mean() + (tied * 0.5).sum() +
           empty.sum();
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
  at::Tensor tied, wide, empty, turned;
};
TORCH_MODULE(Net);

at::Tensor batch_of(const Accelerator& accelerator, int step) {
  return at::arange(12, at::kFloat).view({3, 4}) / (2.0 + step + accelerator.process_index());
}

enum class Clear { kToNone, kToZero, kByHand, kNever };

// Steps with batches that are reduced and such that are not.
std::vector<at::Tensor> trained(const DistributedDataParallelKwargs& options, Clear clear) {
  Accelerator accelerator({.ddp = options});
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 6; ++step) {
    if (step % 3 == 1) {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(net->forward(batch_of(accelerator, step + 7)));
    }
    accelerator.backward(model(batch_of(accelerator, step)));
    optimizer.step();
    if (clear == Clear::kToNone) optimizer.zero_grad();
    if (clear == Clear::kToZero) optimizer.zero_grad(/*set_to_none=*/false);
    if (clear == Clear::kByHand) net->zero_grad(/*set_to_none=*/false);
  }
  return net->parameters();
}

constexpr double kManyBuckets = 0.00005;  // of 52 bytes

class BucketsOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(BucketsOnRanks, GiveTheBitsOfTheReducer) {
  test::run_ranks(GetParam(), [] {
    for (const double megabytes : {25.0, kManyBuckets}) {
      for (const Clear clear : {Clear::kToNone, Clear::kToZero, Clear::kByHand, Clear::kNever}) {
        SCOPED_TRACE(std::to_string(megabytes) + " MiB, " +
                     std::to_string(static_cast<int>(clear)));
        const auto ours = trained({.bucket_cap_mb = megabytes}, clear);
        const auto reference = trained({.gradient_as_bucket_view = false}, clear);
        ASSERT_EQ(ours.size(), reference.size());
        for (std::size_t i = 0; i < ours.size(); ++i)
          EXPECT_TRUE(ours[i].equal(reference[i])) << "parameter " << i;
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, BucketsOnRanks, ::testing::Values(2, 3));

TEST(GradientBuckets, StayWhereTheyAreWhenNobodyKeepsAGradient) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto model = accelerator.prepare(net);
    const void* place = nullptr;
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model(batch_of(accelerator, step)));
      const void* const now = net->second->weight.grad().const_data_ptr();
      EXPECT_TRUE(step == 0 || now == place) << step;
      place = now;
      if (step == 0) net->zero_grad();
      if (step == 1) net->zero_grad(/*set_to_none=*/false);
    }
  });
}

// Large enough to stay where backward writes them: one whose memory is not in order, one that is used as a view, two that
// get views of one gradient, and one of another type.
struct LargeNetImpl : torch::nn::Module {
  LargeNetImpl() {
    set_seed(11);
    first = register_module("first", torch::nn::Linear(64, 64));
    second = register_module("second", torch::nn::Linear(64, 64));
    turned = register_parameter("turned", at::randn({64, 32}).t());
    wide = register_parameter("wide", at::randn({1024}, at::kDouble));
    left = register_parameter("left", at::randn({32, 64}));
    right = register_parameter("right", at::randn({64, 32}));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = second(first(input).tanh());
    const at::Tensor sum = has_views ? left.view({-1}) + right.view({-1})
                                     : left.t().reshape({-1}) * 2.0 + right.view({-1});
    return hidden.matmul(turned.t()).square().mean() + (wide * wide).sum().to(at::kFloat) * 1e-3 +
           (sum * sum).mean() * input.sum();
  }
  bool has_views = true;  // of one gradient, for left and right
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor turned, wide, left, right;
};
TORCH_MODULE(LargeNet);

at::Tensor large_batch_of(const Accelerator& accelerator, int step) {
  return at::arange(640, at::kFloat).view({10, 64}) / (700.0 + step + accelerator.process_index());
}

std::vector<at::Tensor> trained_large(const DistributedDataParallelKwargs& options,
                                      Clear clear,
                                      bool accumulates) {
  Accelerator accelerator({.ddp = options});
  LargeNet net;
  // PyTorch adds to a gradient that two parameters have views of once for each of them, without buckets' views too.
  net->has_views = clear == Clear::kToNone && !accumulates;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-3).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 6; ++step) {
    if (accumulates && step % 3 == 1) {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(net->forward(large_batch_of(accelerator, step + 7)));
    }
    accelerator.backward(model(large_batch_of(accelerator, step)));
    optimizer.step();
    if (clear == Clear::kToNone) optimizer.zero_grad();
    if (clear == Clear::kToZero) optimizer.zero_grad(/*set_to_none=*/false);
  }
  return net->parameters();
}

TEST_P(BucketsOnRanks, GiveTheBitsOfTheReducerOfGradientsThatStayWhereTheyAre) {
  test::run_ranks(GetParam(), [] {
    for (const double megabytes : {25.0, 0.02}) {
      for (const Clear clear : {Clear::kToNone, Clear::kToZero, Clear::kNever}) {
        for (const bool accumulates : {false, true}) {
          SCOPED_TRACE(std::to_string(megabytes) + " MiB, " +
                       std::to_string(static_cast<int>(clear)) + (accumulates ? ", no_sync" : ""));
          const auto ours = trained_large({.bucket_cap_mb = megabytes}, clear, accumulates);
          const auto reference =
              trained_large({.gradient_as_bucket_view = false}, clear, accumulates);
          for (std::size_t i = 0; i < ours.size(); ++i)
            EXPECT_TRUE(ours[i].equal(reference[i])) << "parameter " << i;
        }
      }
    }
  });
}

TEST(GradientBuckets, LargeGradientsLieInMemoryThatAllRanksMap) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    LargeNet net;
    auto model = accelerator.prepare(net);
    accelerator.backward(model(large_batch_of(accelerator, 0)));
    for (const at::Tensor& parameter : net->parameters())
      EXPECT_TRUE(test::lies_in(parameter.grad(), "accel-tensors"));
    EXPECT_FALSE(net->left.grad().is_alias_of(net->right.grad()));
  });
}

// The sum is made in place before the end of the backward: what has yet to be computed of the gradient must not see it.
TEST(GradientBuckets, AGradientThatIsStillReadByBackwardIsSummedElsewhere) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.001}});
    LargeNet net;
    auto model = accelerator.prepare(net);
    const float own = 2.0F + static_cast<float>(accelerator.process_index());
    const at::Tensor input = at::full({10, 64}, own / 640);

    accelerator.backward(model(input));

    // d/dl mean(b * b) * sum(x) = 2 b sum(x) / n with b = l + r, for both alike.
    const at::Tensor both = (net->left.view({-1}) + net->right.view({-1})).detach();
    const at::Tensor expected = both * (2.0 / 2048.0) * 2.5;
    EXPECT_TRUE(net->left.grad().view({-1}).allclose(expected, 1e-5, 1e-7));
    EXPECT_TRUE(net->right.grad().view({-1}).allclose(expected, 1e-5, 1e-7));
  });
}

// Of two layers of the net: the first one's gradient is kept as it is, the other one's as a view.
template <typename TestNet, typename BatchOf>
void expect_kept_gradients(torch::nn::Linear TestNet::*whole,
                           torch::nn::Linear TestNet::*viewed,
                           BatchOf batch) {
  Accelerator accelerator;
  torch::nn::ModuleHolder<TestNet> net;
  auto model = accelerator.prepare(net);
  accelerator.backward(model(batch(accelerator, 0)));
  const at::Tensor& weight = ((*net).*whole)->weight;
  const at::Tensor kept = weight.grad();
  const at::Tensor view = ((*net).*viewed)->weight.grad().view({-1});
  const at::Tensor kept_values = kept.clone();
  const at::Tensor view_values = view.clone();

  for (int step = 1; step < 4; ++step) {
    net->zero_grad();
    accelerator.backward(model(batch(accelerator, 5 * step)));
    const at::Tensor all = gather(weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
    EXPECT_TRUE(kept.equal(kept_values));
    EXPECT_TRUE(view.equal(view_values));
    EXPECT_FALSE(weight.grad().equal(kept_values));
  }
}

TEST(GradientBuckets, AGradientThatTheUserKeepsIsNotWrittenAgain) {
  test::run_ranks(2, [] { expect_kept_gradients(&NetImpl::second, &NetImpl::third, batch_of); });
}

TEST(GradientBuckets, ALargeGradientThatTheUserKeepsIsNotWrittenAgain) {
  test::run_ranks(2, [] {
    expect_kept_gradients(&LargeNetImpl::second, &LargeNetImpl::first, large_batch_of);
  });
}

class UsersHook final : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit UsersHook(int& calls) : calls_(calls) {}
  void operator()(const at::Tensor&) override { ++calls_; }

 private:
  int& calls_;
};

TEST(GradientBuckets, AHookThatTheUserPutsAtAParameterTakesNoHooksPlace) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto model = accelerator.prepare(net);
    int calls = 0;
    torch::autograd::impl::set_post_acc_grad_hooks(net->second->weight,
                                                   std::make_unique<UsersHook>(calls));

    accelerator.backward(model(batch_of(accelerator, 0)));

    const at::Tensor all = gather(net->second->weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
    EXPECT_EQ(calls, 1);
  });
}

struct HeadsImpl : NetImpl {
  std::vector<at::Tensor> forward(const at::Tensor& input) {
    const at::Tensor inner = hidden(input);
    return {second(inner).mean() + (tied * 0.5).sum() + empty.sum(), third(inner).mean()};
  }
};
TORCH_MODULE(Heads);

TEST(GradientBuckets, ASecondGradientBeforeTheFirstWasAveragedIsNamed) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Heads net;
    auto model = accelerator.prepare(net);
    const std::vector<at::Tensor> losses = model(batch_of(accelerator, 0));
    losses[0].backward({}, /*retain_graph=*/true);
    try {
      losses[1].backward();
      FAIL() << "the second backward went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("wide got a second gradient"));
      EXPECT_THAT(error.remedy(), HasSubstr("static_graph"));
    }
  });
}

}  // namespace
}  // namespace accel::gradient_buckets_test
