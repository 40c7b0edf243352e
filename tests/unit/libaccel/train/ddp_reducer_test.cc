// What the Reducer's buckets hold, and how copies go on after a backward that an exception ended.

#include <cstddef>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::ddp_reducer_test {
namespace {

struct ComplexNetImpl : torch::nn::Module {
  at::Tensor waves = register_parameter("waves", at::randn({3, 3}, at::kComplexFloat));
  at::Tensor scale = register_parameter("scale", at::randn({3}));
  at::Tensor wide = register_parameter("wide", at::randn({3}, at::kComplexDouble));
  at::Tensor forward(const at::Tensor& input) {
    return (at::matmul(waves, input.to(at::kComplexFloat)) * scale * wide).abs();
  }
};
TORCH_MODULE(ComplexNet);

// The gradients of both ranks' batches on one process. Halving is exact, so the mean has the bits of the ranks'.
std::vector<at::Tensor> mean_gradients(ComplexNet& net,
                                       const at::Tensor& of_0,
                                       const at::Tensor& of_1) {
  ((net->forward(of_0).sum() + net->forward(of_1).sum()) / 2).backward();
  std::vector<at::Tensor> gradients;
  for (at::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  return gradients;
}

TEST(DdpReducer, AveragesComplexGradients) {
  test::run_ranks(2, [] {
    for (const bool as_view : {false, true}) {
      Accelerator accelerator({.ddp = {.gradient_as_bucket_view = as_view}});
      set_seed(3);
      ComplexNet net;
      set_seed(3);
      ComplexNet reference;
      const std::vector<at::Tensor> batches = {at::ones({3}), at::arange(1, 4, at::kFloat)};
      auto model = accelerator.prepare(net);

      for (int step = 0; step < 2; ++step) {  // the Reducer makes its buckets anew after the first
        net->zero_grad();
        accelerator.backward(model(batches[accelerator.process_index()]).sum());
      }

      const auto expected = mean_gradients(reference, batches[0], batches[1]);
      for (std::size_t i = 0; i < expected.size(); ++i)
        EXPECT_TRUE(at::allclose(net->parameters()[i].grad(), expected[i], 1e-6)) << i << as_view;
    }
  });
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    set_seed(9);
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = first(input).tanh();
    // The gradients of `second` are there by then, those of `first` are not.
    if (throws)
      hidden.register_hook([](const at::Tensor&) { throw std::runtime_error("no more"); });
    return second(hidden).square();
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  bool throws = false;
};
TORCH_MODULE(Net);

// All ranks see one batch, so that the mean of their gradients has the bits of each one's. In steps 0 and 2 the backward
// fails, first with the buckets that the Reducer begins with, then with those that it has made.
void expect_training_goes_on(const AcceleratorOptions& options) {
  Accelerator accelerator(options);
  const at::Tensor batch = at::arange(12, at::kFloat).view({3, 4}) / 12.0;
  Net reference;
  Net net;
  torch::optim::SGD plain(reference->parameters(), torch::optim::SGDOptions(0.5));
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (int step = 0; step < 5; ++step) {
    net->throws = step == 0 || step == 2;
    const at::Tensor loss = model(batch).mean();
    if (net->throws) {
      EXPECT_THROW(accelerator.backward(loss), std::runtime_error);
      optimizer.zero_grad();
      continue;
    }
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    reference->forward(batch).mean().backward();
    plain.step();
    plain.zero_grad();
  }
  for (std::size_t i = 0; i < net->parameters().size(); ++i)
    EXPECT_TRUE(net->parameters()[i].equal(reference->parameters()[i])) << i;
}

constexpr double kManyBuckets = 0.00005;  // of 52 bytes

TEST(DdpReducer, CopiesGoOnAfterAnExceptionInABackward) {
  test::run_ranks(2, [] {
    const std::vector<DistributedDataParallelKwargs> kinds = {
        {.bucket_cap_mb = kManyBuckets},
        {.bucket_cap_mb = kManyBuckets, .gradient_as_bucket_view = true},
        {.bucket_cap_mb = kManyBuckets, .find_unused_parameters = true},
        {.bucket_cap_mb = kManyBuckets, .static_graph = true}};
    for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
      SCOPED_TRACE(kind);
      expect_training_goes_on({.ddp = kinds[kind]});
    }
  });
}

TEST(DdpReducer, ZeroOneGoesOnAfterAnExceptionInABackward) {
  test::run_ranks(2, [] {
    expect_training_goes_on({.ddp = {.bucket_cap_mb = kManyBuckets},
                             .deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}});
  });
}

// A batch that exchanges nothing may fail on one rank alone.
TEST(DdpReducer, AnExceptionWithoutSyncIsThisRanksOwn) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net;
    auto model = accelerator.prepare(net);
    const at::Tensor batch = at::ones({1, 4});
    for (int step = 0; step < 2; ++step) {
      net->throws = accelerator.is_main_process();
      {
        const auto scope = accelerator.no_sync(model);
        const at::Tensor loss = model(batch).mean();
        if (net->throws) {
          EXPECT_THROW(accelerator.backward(loss), std::runtime_error);
        }
      }
      net->throws = false;
      net->zero_grad();
      accelerator.backward(model(batch).mean());
    }

    const at::Tensor all = gather(net->first->weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

}  // namespace
}  // namespace accel::ddp_reducer_test
