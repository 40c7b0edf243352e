// What hooks make of the gradients of copies. Against PyTorch's DDP: tests/peer/train_peer.py.

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <stdexcept>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/communication_hook.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::communication_hook_test {
namespace {

using ::testing::HasSubstr;

// One weight large enough to stay where backward writes it without a hook, and one whose memory is not in order.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(9);
    first = register_module("first", torch::nn::Linear(32, 64));
    second = register_module("second", torch::nn::Linear(64, 3));
    turned = register_parameter("turned", at::randn({3, 32}).t());
  }
  at::Tensor forward(const at::Tensor& input) {
    return second(first(input).tanh()).sin() + input.matmul(turned).square();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  at::Tensor turned;
};
TORCH_MODULE(Net);

at::Tensor batch_of(int rank) {
  return at::arange(96, at::kFloat).view({3, 32}) / (70.0 + rank);
}

std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : module.parameters())
    gradients.push_back(parameter.grad().clone());
  return gradients;
}

// Of a rank by itself.
std::vector<at::Tensor> own_gradients(int rank) {
  Net net;
  net->forward(batch_of(rank)).mean().backward();
  return gradients_of(*net);
}

std::vector<at::Tensor> averaged(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  Net net;
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 2; ++step) {  // LibTorch makes its buckets anew after the first
    optimizer.zero_grad();
    accelerator.backward(model(batch_of(accelerator.process_index())).mean());
  }
  return gradients_of(*net);
}

void expect_equal(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    EXPECT_TRUE(found[i].equal(expected[i])) << "parameter " << i;
}

// With buckets of ours, of LibTorch, and ZeRO-1.
void for_each_kind(const DistributedDataParallelKwargs& ddp,
                   const std::function<void(const AcceleratorOptions&)>& test) {
  for (const double megabytes : {25.0, 0.001}) {
    AcceleratorOptions options{.ddp = ddp};
    options.ddp.bucket_cap_mb = megabytes;
    test(options);
    options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1};
    test(options);
    options.deepspeed_plugin.reset();
    options.ddp.gradient_as_bucket_view = false;
    test(options);
    options.ddp.find_unused_parameters = true;
    test(options);
  }
}

TEST(CommunicationHook, RoundsHalvesAndSumsWhereItCompresses) {
  test::run_ranks(2, [] {
    const auto of_0 = own_gradients(0);
    const auto of_1 = own_gradients(1);
    for (const bool is_fp16 : {true, false}) {
      const at::ScalarType dtype = is_fp16 ? at::kHalf : at::kBFloat16;
      std::vector<at::Tensor> expected;
      for (std::size_t i = 0; i < of_0.size(); ++i) {
        const at::Tensor sum = of_0[i].to(dtype).div(2) + of_1[i].to(dtype).div(2);
        expected.push_back(sum.to(at::kFloat));
      }
      const auto type = is_fp16 ? DDPCommunicationHookType::kFp16 : DDPCommunicationHookType::kBf16;
      for_each_kind({.comm_hook = type},
                    [&](const auto& options) { expect_equal(averaged(options), expected); });
      // As the wrapper does with what would else not be rounded.
      for_each_kind({.comm_hook = allreduce_hook, .comm_wrapper = type},
                    [&](const auto& options) { expect_equal(averaged(options), expected); });
    }
  });
}

TEST(CommunicationHook, OfOnesOwnMayDoWhatIsDoneWithoutOne) {
  test::run_ranks(2, [] {
    const auto expected = averaged({});
    for_each_kind({.comm_hook = allreduce_hook},
                  [&](const auto& options) { expect_equal(averaged(options), expected); });
  });
}

TEST(CommunicationHook, GetsEachGradientOnceInOrderAndNoneWithoutSync) {
  test::run_ranks(2, [] {
    for (const bool as_view : {true, false}) {
      std::vector<at::Tensor> seen;
      std::vector<std::size_t> indices;
      int num_last = 0;
      const CommunicationHook hook = [&](GradientBucket& bucket, CommunicationGroup& group) {
        EXPECT_EQ(bucket.gradients().size(), bucket.parameters.size());
        for (const at::Tensor& gradient : bucket.gradients()) seen.push_back(gradient.clone());
        EXPECT_TRUE(indices.empty() || bucket.index == indices.back() + 1);
        indices.push_back(bucket.index);
        num_last += bucket.is_last ? 1 : 0;
        EXPECT_EQ(group.size(), 2);
        return allreduce_hook(bucket, group);
      };
      Accelerator accelerator(
          {.ddp = {.bucket_cap_mb = 0.001, .gradient_as_bucket_view = as_view, .comm_hook = hook}});
      Net net;
      auto model = accelerator.prepare(net);
      const at::Tensor batch = batch_of(accelerator.process_index());
      {
        const auto scope = accelerator.no_sync(model);
        accelerator.backward(model(batch).mean());
      }
      EXPECT_TRUE(indices.empty());
      net->zero_grad();
      accelerator.backward(model(batch).mean());

      EXPECT_EQ(num_last, 1);
      const auto own = own_gradients(accelerator.process_index());
      ASSERT_EQ(seen.size(), own.size());
      for (const at::Tensor& gradient : own) {
        EXPECT_TRUE(std::any_of(seen.begin(), seen.end(), [&](const at::Tensor& other) {
          return other.equal(gradient);
        }));
      }
    }
  });
}

TEST(CommunicationHook, MayKeepAnErrorByTheIndexOfTheBucket) {
  test::run_ranks(2, [] {
    std::vector<at::Tensor> errors;
    const CommunicationHook hook = [&](GradientBucket& bucket, CommunicationGroup& group) {
      errors.resize(std::max(errors.size(), bucket.index + 1));
      at::Tensor& error = errors[bucket.index];
      if (error.defined()) bucket.buffer.add_(error);
      at::Tensor rounded = bucket.buffer.to(at::kBFloat16).to(at::kFloat);
      error = bucket.buffer - rounded;
      group.all_reduce_(rounded.div_(group.size()));
      return rounded;
    };
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.001, .comm_hook = hook}});
    Net net;
    auto model = accelerator.prepare(net);
    const at::Tensor batch = batch_of(accelerator.process_index());
    std::vector<at::Tensor> sum;
    constexpr int kSteps = 8;
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      accelerator.backward(model(batch).mean());
      const auto gradients = gradients_of(*net);
      for (std::size_t i = 0; i < gradients.size(); ++i)
        sum.size() == i ? sum.push_back(gradients[i]) : void(sum[i] += gradients[i]);
    }

    // What was lost of all steps is the mean of the ranks' last errors: of a bf16 at most 2^-9 of what is rounded, a gradient and
    // the error before it, and twice that is allowed for the roundings of fp32. Were errors not fed back, it would be eight
    // times as much.
    const auto of_0 = own_gradients(0);
    const auto of_1 = own_gradients(1);
    for (std::size_t i = 0; i < sum.size(); ++i) {
      const at::Tensor exact = (of_0[i] + of_1[i]) / 2;
      const at::Tensor largest = at::maximum(of_0[i].abs(), of_1[i].abs());
      EXPECT_TRUE((sum[i] - exact * kSteps).abs().le(largest / 256).all().item<bool>()) << i;
    }
  });
}

void expect_refused(const AcceleratorOptions& options, ErrorCode code, const char* message) {
  Accelerator accelerator(options);
  Net net;
  try {
    accelerator.prepare(net);
    ADD_FAILURE() << "it was prepared; expected: " << message;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_THAT(error.message(), HasSubstr(message));
  }
}

TEST(CommunicationHook, IsRefusedWhereItMeansNothing) {
  test::run_ranks(2, [] {
    constexpr auto kFp16 = DDPCommunicationHookType::kFp16;
    for (const ShardingStrategy strategy :
         {ShardingStrategy::kFullShard, ShardingStrategy::kShardGradOp}) {
      expect_refused({.ddp = {.comm_hook = kFp16},
                      .fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = strategy}},
                     ErrorCode::kUnsupported,
                     "are divided over the ranks");
    }
    expect_refused(
        {.ddp = {.comm_hook = kFp16}, .deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}},
        ErrorCode::kUnsupported,
        "are divided over the ranks");
    expect_refused(
        {.ddp = {.comm_wrapper = kFp16}}, ErrorCode::kInvalidArgument, "no ddp.comm_hook to wrap");
    expect_refused({.ddp = {.comm_hook = CommunicationHook()}},
                   ErrorCode::kInvalidArgument,
                   "an empty function");
  });
}

struct WavesImpl : torch::nn::Module {
  at::Tensor waves = register_parameter("waves", at::randn({3, 3}, at::kComplexFloat));
};
TORCH_MODULE(Waves);

TEST(CommunicationHook, GradientsThatItDoesNotGetOrCannotRoundAreRefusedByName) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.comm_hook = DDPCommunicationHookType::kBf16}});
    torch::nn::Embedding sparse(torch::nn::EmbeddingOptions(4, 2).sparse(true));
    Waves waves;
    try {
      accelerator.prepare(sparse);
      ADD_FAILURE() << "a sparse gradient was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("weight is sparse"));
    }
    try {
      accelerator.prepare(waves);
      ADD_FAILURE() << "a complex gradient was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("waves is of complex numbers"));
    }
  });
}

TEST(CommunicationHook, ThatThrowsOrReturnsAnotherSizeEndsTheBackwardAndTheNextGoesOn) {
  test::run_ranks(2, [] {
    for (const bool as_view : {true, false}) {
      int calls = 0;
      const CommunicationHook hook = [&](GradientBucket& bucket, CommunicationGroup& group) {
        ++calls;
        if (calls == 1) throw std::runtime_error("no more");
        if (calls == 2) return bucket.buffer.narrow(0, 0, 1);
        return allreduce_hook(bucket, group);
      };
      Accelerator accelerator({.ddp = {.gradient_as_bucket_view = as_view, .comm_hook = hook}});
      Net net;
      auto model = accelerator.prepare(net);
      const at::Tensor batch = batch_of(accelerator.process_index());
      EXPECT_THROW(accelerator.backward(model(batch).mean()), std::runtime_error);
      try {
        accelerator.backward(model(batch).mean());
        ADD_FAILURE() << "a gradient of another size was taken";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
        EXPECT_THAT(error.message(), HasSubstr("1 numbers of bucket 0"));
      }

      net->zero_grad();
      accelerator.backward(model(batch).mean());
      const at::Tensor all = gather(net->first->weight.grad().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

}  // namespace
}  // namespace accel::communication_hook_test
