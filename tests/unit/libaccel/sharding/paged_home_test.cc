// FULL_SHARD over several nodes: ranks of one machine that take each other for ranks of different nodes.

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/with_params.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::paged_home_test {
namespace {

using ::testing::HasSubstr;

// To be called first by each rank: the node of a rank is its number, shifted right.
void take_node(int ranks_per_node) {
  const std::string node = "node" + std::to_string(test::rank_of_this_process() / ranks_per_node);
  ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
}

// Tied embeddings, layers of several units, and experts of which a rank may use one only.
struct NetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear left{nullptr};
  torch::nn::Linear right{nullptr};
  torch::nn::Linear frozen{nullptr};
  bool uses_left = true;
  bool uses_right = true;

  NetImpl() {
    table = register_module("table", torch::nn::Embedding(11, 24));
    first = register_module("first", torch::nn::Linear(24, 61));
    second = register_module("second", torch::nn::Linear(61, 24));
    left = register_module("left", torch::nn::Linear(24, 24));
    right = register_module("right", torch::nn::Linear(24, 24));
    frozen = register_module("frozen", torch::nn::Linear(24, 24));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor hidden = second(first(table(tokens)).tanh());
    if (uses_left) hidden = hidden + left(hidden);
    if (uses_right) hidden = hidden + right(hidden);
    return frozen(hidden).matmul(table->weight.t());
  }
};
TORCH_MODULE(Net);

// Every module is a unit.
std::optional<FullyShardedDataParallelPlugin> small_units() {
  FullyShardedDataParallelPlugin plugin;
  plugin.auto_wrap_policy = AutoWrapPolicy::kTransformerBasedWrap;
  plugin.transformer_cls_names_to_wrap = {{"Linear", "Embedding"}};
  return plugin;
}

at::Tensor tokens(std::int64_t n, int step) {
  return (at::arange(n, at::kLong) * 3 + step) % 11;
}

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

struct Training {
  std::optional<FullyShardedDataParallelPlugin> plugin;
  int accumulation = 1;
  bool own_batches = true;   // false: every rank sees the same one
  bool own_experts = false;  // each rank uses one of two
};

at::Tensor trained(const Training& training) {
  AcceleratorOptions options;
  options.fsdp_plugin = training.plugin;
  options.gradient_accumulation_steps = training.accumulation;
  options.ddp.find_unused_parameters = true;
  Accelerator accelerator(options);
  set_seed(3);
  Net net;
  if (training.own_experts) {
    net->uses_left = accelerator.process_index() % 2 == 0;
    net->uses_right = !net->uses_left;
  }
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true));
  auto [model, optimizer] = accelerator.prepare(net, adam);
  for (int step = 0; step < 4 * training.accumulation; ++step) {
    auto accumulating = accelerator.accumulate(model);
    const int shift = training.own_batches ? accelerator.process_index() : 0;
    accelerator.backward((model(tokens(6, step + shift)) - 0.5).square().mean());
    optimizer.step();
    optimizer.zero_grad();
  }
  const at::Tensor parameters = flat_parameters(*net);
  accelerator.wait_for_everyone();  // others may still read this rank's shards
  return parameters;
}

void expect_equal(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(a.equal(b)) << "differ by up to " << (a - b).abs().max().item<double>();
}

TEST(SeveralNodes, TwoRanksTrainToTheBitsOfCopies) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_equal(trained({.plugin = small_units()}), trained({}));
  });
}

// Sums of equal numbers have no order.
TEST(SeveralNodes, TwoNodesOfTwoRanksTrainToTheBitsOfCopies) {
  test::run_ranks(4, [] {
    take_node(2);
    expect_equal(trained({.plugin = small_units(), .own_batches = false}),
                 trained({.own_batches = false}));
  });
}

TEST(SeveralNodes, NodesMayHaveDifferentNumbersOfRanks) {
  test::run_ranks(3, [] {
    take_node(2);
    const at::Tensor own = trained({.plugin = small_units()});
    const at::Tensor difference = own - trained({});
    // Sums of three terms in another order: 2^-23 of each gradient; Adam's steps of 0.01 are ratios of gradients, four
    // of them, and gradients near zero may lose up to their own size in one step.
    EXPECT_LE(difference.abs().median().item<double>(), 1e-6);
    EXPECT_LE(difference.abs().max().item<double>(), 4 * 0.01);
  });
}

TEST(SeveralNodes, ShardsMayBeWholeTensors) {
  test::run_ranks(2, [] {
    take_node(1);
    auto plugin = small_units();
    plugin->shard_by_tensor = true;
    expect_equal(trained({.plugin = plugin}), trained({}));
  });
}

TEST(SeveralNodes, AccumulationEqualsThatOfCopies) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_equal(trained({.plugin = small_units(), .accumulation = 3}),
                 trained({.accumulation = 3}));
  });
}

TEST(SeveralNodes, RanksMayUseDifferentUnitsInAnyOrder) {
  test::run_ranks(2, [] {
    take_node(1);
    expect_equal(trained({.plugin = small_units(), .own_experts = true}),
                 trained({.own_experts = true}));
  });
}

// What is fetched ahead of a step that goes another way than the one before must not meet the optimizer.
TEST(SeveralNodes, StepsMaySkipLayers) {
  test::run_ranks(2, [] {
    take_node(1);
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      if (plugin) plugin->transformer_cls_names_to_wrap = {{"Linear"}};
      AcceleratorOptions options;
      options.fsdp_plugin = std::move(plugin);
      options.ddp.find_unused_parameters = true;
      Accelerator accelerator(options);
      set_seed(3);
      torch::nn::Sequential net;
      for (int i = 0; i < 8; ++i) net->push_back(torch::nn::Linear(16, 16));
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 60; ++step) {
        at::Tensor hidden = at::ones({2, 16}) * (1 + accelerator.process_index());
        int place = 0;
        for (torch::nn::AnyModule& layer : *net) {
          if ((place++ + step * 5) % 3 != 0) hidden = layer.forward<at::Tensor>(hidden).tanh();
        }
        accelerator.backward(hidden.square().mean());
        // Reading parameters just before the step wakes the thread that fetches ahead.
        for (const at::Tensor& parameter : net->parameters()) (void)parameter.detach().norm();
        optimizer.step();
        optimizer.zero_grad();
      }
      const at::Tensor parameters = flat_parameters(*net);
      accelerator.wait_for_everyone();
      return parameters;
    };
    expect_equal(
        train(small_units()),
        train(FullyShardedDataParallelPlugin{.sharding_strategy = ShardingStrategy::kShardGradOp}));
  });
}

TEST(SeveralNodes, AGroupOfWhichARankHasNoPieceIsClippedAll) {
  test::run_ranks(2, [] {
    take_node(1);
    Accelerator accelerator({.fsdp_plugin = small_units()});
    set_seed(3);
    Net net;
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(std::vector<at::Tensor>{net->left->weight, net->right->weight});
    groups.emplace_back(std::vector<at::Tensor>{net->left->bias});
    torch::optim::SGD sgd(std::move(groups), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(tokens(6, accelerator.process_index())).square().mean());
    const auto& pieces = sgd.param_groups()[1].params();
    const double norm = accelerator.clip_grad_norm_(pieces, 1e9).item<double>();
    EXPECT_GT(norm, 0.0);
    const at::Tensor all = gather(at::full({1}, norm, at::kDouble));
    EXPECT_EQ(all[0].item<double>(), all[1].item<double>());
    EXPECT_EQ(gather(at::full({1}, std::ssize(pieces), at::kLong)).sum().item<std::int64_t>(), 1)
        << "the bias was to lie in one rank's shard";
  });
}

// Bytes of the memory that this process's node holds parameters in.
std::int64_t node_bytes() {
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    const auto target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (gone || target.find("memfd:accel-parameters") == std::string::npos) continue;
    struct stat status {};
    if (::stat(entry.path().c_str(), &status) == 0) return 512 * status.st_blocks;
  }
  return -1;
}

TEST(SeveralNodes, ANodeHoldsItsOwnShardsAndTheUnitsInUse) {
  test::run_ranks(2, [] {
    take_node(1);
    auto plugin = small_units();
    plugin->transformer_cls_names_to_wrap = {{"Linear"}};
    Accelerator accelerator({.fsdp_plugin = plugin});
    set_seed(3);
    torch::nn::Sequential net;
    for (int i = 0; i < 12; ++i) net->push_back(torch::nn::Linear(256, 256));  // 257 KiB each
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    std::int64_t most = 0;
    for (int step = 0; step < 3; ++step) {
      at::Tensor hidden = at::ones({2, 256});
      for (torch::nn::AnyModule& layer : *net) {
        hidden = layer.forward<at::Tensor>(hidden);
        most = std::max(most, node_bytes());
      }
      accelerator.backward(hidden.square().mean());
      // Wakes the thread that fetches ahead, which may come to it only when the step is over.
      (void)net->ptr<torch::nn::LinearImpl>(0)->bias.detach().norm();
      optimizer.step();
      optimizer.zero_grad();
    }
    const std::int64_t whole = 12 * (256 * 256 + 256) * 4;
    const std::int64_t unit = whole / 12;
    const std::int64_t page = 4096;
    // Half of everything, the other halves of three units, and pages that two shards share.
    EXPECT_GE(most, whole / 2);
    EXPECT_LE(most, whole / 2 + 3 * unit / 2 + 3 * 12 * page);
    accelerator.wait_for_everyone();
    EXPECT_LE(node_bytes(), whole / 2 + 3 * 12 * page) << "after the step all units are given back";
  });
}

TEST(SeveralNodes, AnOperatorThatWritesIsRefusedWithTheParametersName) {
  test::run_ranks(2, [] {
    take_node(1);
    Accelerator accelerator({.fsdp_plugin = small_units()});
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::NoGradGuard no_grad;
    const std::vector<std::function<void()>> writes = {
        [&] { net->first->bias.zero_(); },
        [&] { net->first->bias.data().add_(1); },
        [&] { at::_foreach_mul_({net->first->bias}, 0.5); },
    };
    for (const auto& write : writes) {
      try {
        write();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(),
                    HasSubstr("to the parameter first.bias, which the ranks share"));
      }
    }
  });
}

TEST(SeveralNodes, AStrayWriteByAnAddressIsStoppedWithTheParametersName) {
  const auto ends =
      test::run_ranks(2,
                      [] {
                        take_node(1);
                        Accelerator accelerator({.fsdp_plugin = small_units()});
                        Net net;
                        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
                        auto [model, optimizer] = accelerator.prepare(net, sgd);
                        const auto held = with_params(model, {"first.bias"});
                        net->first->bias.data_ptr<float>()[0] = 0.0F;
                      },
                      {.expect_success = false});
  // The one that comes second may find that the other, whose shard it needs, has ended.
  EXPECT_THAT(ends[0].output + ends[1].output,
              HasSubstr("[pager.read_only]: parameter 'first.bias'"));
}

TEST(SeveralNodes, ARankThatEndedIsNamedByThoseThatNeedItsShards) {
  const test::ScratchFolder scratch;
  const auto ends = test::run_ranks(
      2,
      [&] {
        take_node(1);
        Accelerator accelerator({.fsdp_plugin = small_units()});
        Net net;
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const std::filesystem::path prepared = scratch.path() / "rank 0 is prepared";
        if (accelerator.process_index() == 1) {
          while (!std::filesystem::exists(prepared)) std::this_thread::yield();
          ::raise(SIGKILL);
        }
        std::ofstream(prepared).put('\n');
        const auto begin = std::chrono::steady_clock::now();
        try {
          while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(60)) {
            (void)model(tokens(6, 0));
          }
          ADD_FAILURE() << "nothing was thrown";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
          EXPECT_THAT(error.message(), HasSubstr("rank 1 gives no parameters"));
        }
      },
      {.expect_success = false});
  EXPECT_EQ(ends[0].status, 0) << ends[0].output;
  EXPECT_EQ(ends[1].status, 128 + SIGKILL);
}

TEST(SeveralNodes, ACheckpointGoesOnWithOtherNodes) {
  const test::ScratchFolder scratch;
  const auto run = [&](bool resumes, std::optional<FullyShardedDataParallelPlugin> plugin) {
    Accelerator accelerator({.fsdp_plugin = std::move(plugin)});
    set_seed(3);
    Net net;
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, adam);
    if (resumes) accelerator.load_state(scratch.path() / "state");
    for (int step = resumes ? 2 : 0; step < 4; ++step) {
      if (step == 2 && !resumes) accelerator.save_state(scratch.path() / "state");
      accelerator.backward((model(tokens(6, step)) - 0.5).square().mean());
      optimizer.step();
      optimizer.zero_grad();
    }
    const at::Tensor parameters = flat_parameters(*net);
    accelerator.wait_for_everyone();
    return parameters;
  };
  test::run_ranks(4, [&] {
    take_node(2);
    const at::Tensor expected = run(false, small_units());
    expect_equal(run(true, small_units()), expected);
    expect_equal(run(true, std::nullopt), expected);
  });
}

// Pages that were read before the load, and other nodes' shards that a node still has, are of another state.
TEST(SeveralNodes, ALoadedStateIsSeenByAllNodes) {
  const test::ScratchFolder scratch;
  test::run_ranks(4, [&] {
    take_node(2);
    const auto ways = {std::pair("no", ShardingStrategy::kFullShard),
                       std::pair("bf16", ShardingStrategy::kFullShard),
                       std::pair("no", ShardingStrategy::kShardGradOp),
                       std::pair("bf16", ShardingStrategy::kShardGradOp)};
    for (const auto& [precision, strategy] : ways) {
      SCOPED_TRACE(precision + (" " + std::string(to_string(strategy))));
      auto plugin = small_units();
      plugin->sharding_strategy = strategy;
      if (precision != std::string("no")) plugin->mixed_precision_policy = precision;
      Accelerator accelerator({.fsdp_plugin = plugin});
      set_seed(3);
      Net net;
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const auto step = [&] {
        accelerator.backward(model(tokens(6, 1)).to(at::kFloat).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      const at::Tensor saved = flat_parameters(*net).to(at::kFloat);
      accelerator.save_state(scratch.path() / precision);
      step();
      const at::Tensor trained_on = flat_parameters(*net).to(at::kFloat);
      EXPECT_FALSE(trained_on.equal(saved));

      accelerator.load_state(scratch.path() / precision);

      expect_equal(flat_parameters(*net).to(at::kFloat), saved);
      accelerator.wait_for_everyone();
    }
  });
}

TEST(SeveralNodes, NothingIsLoadedWhileARankHoldsParameters) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    take_node(1);
    auto plugin = small_units();
    plugin->mixed_precision_policy = "bf16";
    Accelerator accelerator({.fsdp_plugin = plugin});
    set_seed(3);
    Net net;
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.save_state(scratch.path() / "state");
    std::optional<ParameterHold> held;
    if (accelerator.process_index() == 1) held = with_params(model, {"first.weight"});
    try {
      accelerator.load_state(scratch.path() / "state");
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("in use by rank 1"));
    }
    held.reset();
    accelerator.load_state(scratch.path() / "state");
    accelerator.wait_for_everyone();
  });
}

}  // namespace
}  // namespace accel::paged_home_test
