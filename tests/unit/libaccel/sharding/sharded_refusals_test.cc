// What cannot be divided over ranks, or not any more: refused by name.

#include <cmath>
#include <csignal>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/sharded_net.h"

namespace accel::sharded_refusals_test {
namespace {

using test::error_of;
using test::full_shard;
using test::loss_of;
using test::seeded_net;
using test::tokens;
using ::testing::HasSubstr;
using Net = test::ShardedNet;

TEST(Sharded, RefusesAnOptimizerWhoseStepsAreNotElementWise) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::LBFGS lbfgs(net->parameters());
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net, lbfgs); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(
        error.message(),
        HasSubstr(
            "torch::optim::LBFGS cannot work on shards: its steps need all parameters at once"));
  });
}

TEST(Sharded, RefusesAnOptimizerThatHasStepped) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::Adam adam(net->parameters());
    loss_of(net(tokens(4, 0))).backward();
    adam.step();
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net, adam); });
    EXPECT_THAT(error.message(), HasSubstr("has stepped before prepare()"));
  });
}

TEST(Sharded, RefusesParametersThatShareMemoryWithoutBeingTied) {
  test::run_ranks(2, [] {
    struct OverlappingImpl : torch::nn::Module {
      OverlappingImpl() {
        const at::Tensor memory = at::ones({8});
        register_parameter("low", memory.narrow(0, 0, 6).detach());
        register_parameter("high", memory.narrow(0, 2, 6).detach());
      }
      at::Tensor forward(const at::Tensor& input) { return input; }
    };
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    const auto net = std::make_shared<OverlappingImpl>();
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("low and high are different tensors of one memory"));
  });
}

TEST(Sharded, RefusesAnEmbeddingWhoseForwardScalesItsRows) {
  test::run_ranks(2, [] {
    struct TableImpl : torch::nn::Module {
      TableImpl() {
        words = register_module(
            "words", torch::nn::Embedding(torch::nn::EmbeddingOptions(8, 4).max_norm(1.0)));
      }
      at::Tensor forward(const at::Tensor& input) { return words(input); }
      torch::nn::Embedding words{nullptr};
    };
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    const auto net = std::make_shared<TableImpl>();

    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });

    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("the module 'words' has max_norm"));
    EXPECT_THAT(error.remedy(), HasSubstr("ignored_modules"));
  });
}

TEST(Sharded, AWriteByAnAddressToASharedParameterIsStoppedWithItsName) {
  const auto exits = test::run_ranks(2,
                                     [] {
                                       Accelerator accelerator({.fsdp_plugin = full_shard()});
                                       Net net = seeded_net();
                                       auto model = accelerator.prepare(net);
                                       net->second->bias.data_ptr<float>()[0] *= 0.5F;
                                     },
                                     {.expect_success = false});
  for (const test::RankExit& exit : exits) {
    EXPECT_EQ(exit.status, 128 + SIGSEGV);
    EXPECT_THAT(
        exit.output,
        HasSubstr("[pager.read_only]: parameter 'second.bias' was written to at byte 0 of 24"));
  }
}

TEST(Sharded, NamesAParameterWhoseMemoryWasReplaced) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    net->second->bias.set_data(at::ones({6}));
    accelerator.backward(loss_of(model(tokens(4, 0))));
    const Error error = error_of([&, step = optimizer] { step.step(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("second.bias has got other memory since prepare()"));
  });
}

// Nothing of it is left: neither the gradients that had come, nor a parameter that seems to get a second one.
TEST(Sharded, GoesOnAfterABackwardOfTheProgramsOwnThatThrew) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    torch::nn::Linear net(4, 1);
    auto model = accelerator.prepare(net);
    const auto hook = net->weight.register_hook([](const at::Tensor& gradient) -> at::Tensor {
      throw std::runtime_error("stop at " + std::to_string(gradient.dim()));
    });
    EXPECT_THROW(model(at::ones({1, 4})).sum().backward(), std::runtime_error);
    net->weight.remove_hook(hook);
    model(at::ones({1, 4})).sum().backward();
    // Five derivatives of 1: four of the weight, and that of the bias.
    EXPECT_NEAR(
        accelerator.clip_grad_norm_(net->parameters(), 10).item<double>(), std::sqrt(5.0), 1e-6);
  });
}

TEST(Sharded, RefusesAParameterGroupThatIsAddedLater) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    sgd.add_param_group(torch::optim::OptimizerParamGroup({at::ones({2}).requires_grad_(true)}));
    const Error error = error_of([&, step = optimizer] { step.step(); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(),
                HasSubstr("had 1 parameter groups when it was prepared and has 2 now"));
  });
}

TEST(Sharded, RefusesSparseGradientsByName) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 4).sparse(true));
    const Error error = error_of([&] { std::ignore = accelerator.prepare(table); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("the gradient of weight is sparse"));
  });
}

TEST(Sharded, NamesTheFirstParameterThatDiffersBetweenRanks) {
  const auto exits = test::run_ranks(2, [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    torch::nn::Linear net(4, accelerator.is_main_process() ? 4 : 5);
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
    EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
    EXPECT_THAT(error.message(), HasSubstr("weight Float [5, 4]"));
  });
}

TEST(Sharded, NamesAClassThatNoModuleHas) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin = full_shard();
    options.fsdp_plugin->auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
    options.fsdp_plugin->transformer_cls_names_to_wrap = {{"Block"}};
    Accelerator accelerator(options);
    Net net = seeded_net();
    const Error error = error_of([&] { std::ignore = accelerator.prepare(net); });
    EXPECT_THAT(error.message(),
                HasSubstr("could not find the transformer layer class Block in the model; it has"));
    EXPECT_THAT(error.message(), HasSubstr("LayerNorm"));
  });
}

}  // namespace
}  // namespace accel::sharded_refusals_test
