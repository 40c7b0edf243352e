// Sharded models on several ranks: they train as copies do, and each rank holds its part.

#include <cmath>
#include <csignal>
#include <fstream>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "libaccel/engine/gradients/divided_gradients.h"
#include "tests/support/rank_group.h"
#include "tests/support/sharded_net.h"

namespace accel::sharded_model_test {
namespace {

using test::full_shard;
using test::loss_of;
using test::seeded_net;
using test::tokens;
using Net = test::ShardedNet;

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

using Optimizers = std::function<std::unique_ptr<torch::optim::Optimizer>(Net&)>;

struct Training {
  Optimizers optimizer;
  AcceleratorOptions options;
  int accumulation = 1;
  double max_norm = 0.0;  // 0: not clipped
};

// Trains a fresh net for some steps and returns its parameters.
at::Tensor trained(const Training& training, std::optional<FullyShardedDataParallelPlugin> plugin) {
  AcceleratorOptions options = training.options;
  options.fsdp_plugin = std::move(plugin);
  options.gradient_accumulation_steps = training.accumulation;
  options.ddp.find_unused_parameters = true;
  Accelerator accelerator(options);
  Net net = seeded_net();
  auto [model, optimizer] =
      accelerator.prepare(net, std::shared_ptr<torch::optim::Optimizer>(training.optimizer(net)));
  for (int step = 0; step < 3 * training.accumulation; ++step) {
    auto accumulating = accelerator.accumulate(model);
    const at::Tensor batch = tokens(4 * accelerator.num_processes(), step);
    const at::Tensor own = batch.chunk(accelerator.num_processes())[accelerator.process_index()];
    accelerator.backward(loss_of(model(own)));
    if (training.max_norm > 0 && accelerator.sync_gradients()) {
      accelerator.clip_grad_norm_(model->parameters(), training.max_norm);
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return flat_parameters(*net);
}

template <typename O, typename Options>
Optimizers made_with(Options options) {
  return [options](Net& net) { return std::make_unique<O>(net->parameters(), options); };
}

const std::vector<std::pair<const char*, Optimizers>>& optimizers() {
  static const std::vector<std::pair<const char*, Optimizers>> all{
      {"SGD",
       made_with<torch::optim::SGD>(
           torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01))},
      {"Adam", made_with<torch::optim::Adam>(torch::optim::AdamOptions(0.01))},
      {"AdamW", made_with<torch::optim::AdamW>(torch::optim::AdamWOptions(0.01).amsgrad(true))},
      {"RMSprop", made_with<torch::optim::RMSprop>(torch::optim::RMSpropOptions(0.01))},
      {"Adagrad", made_with<torch::optim::Adagrad>(torch::optim::AdagradOptions(0.1))},
  };
  return all;
}

// Ranks of one node sum in rank order, whichever the collective and wherever its chunks end: to the bit, at any number.
void expect_equal(const at::Tensor& a, const at::Tensor& b) {
  EXPECT_TRUE(a.equal(b)) << "differ by up to " << (a - b).abs().max().item<double>() << " at "
                          << (a != b).nonzero().flatten();
}

// Bytes of this process's share of the memory that ranks map together.
double shared_bytes_of_this_process() {
  std::ifstream maps("/proc/self/smaps");
  double bytes = 0;
  bool is_ours = false;
  for (std::string line; std::getline(maps, line);) {
    if (line.find("memfd:accel-parameters") != std::string::npos) {
      is_ours = true;
    } else if (is_ours && line.starts_with("Pss:")) {
      bytes += 1024.0 * std::stod(line.substr(4));
      is_ours = false;
    }
  }
  return bytes;
}

class ShardedOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(ShardedOnRanks, EveryOptimizerTrainsToTheWeightsOfCopies) {
  test::run_ranks(GetParam(), [] {
    for (const auto& [name, optimizer] : optimizers()) {
      SCOPED_TRACE(name);
      const Training training{.optimizer = optimizer};
      expect_equal(trained(training, full_shard()), trained(training, std::nullopt));
    }
  });
}

TEST_P(ShardedOnRanks, AccumulationEqualsThatOfCopies) {
  test::run_ranks(GetParam(), [] {
    const Training training{.optimizer = optimizers()[2].second, .accumulation = 3};
    expect_equal(trained(training, full_shard()), trained(training, std::nullopt));
  });
}

TEST_P(ShardedOnRanks, AllRanksEndWithTheSameBits) {
  test::run_ranks(GetParam(), [] {
    const at::Tensor own = trained({.optimizer = optimizers()[2].second}, full_shard());
    const at::Tensor all = gather(own.unsqueeze(0));
    for (std::int64_t rank = 1; rank < all.size(0); ++rank) EXPECT_TRUE(all[rank].equal(all[0]));
  });
}

TEST_P(ShardedOnRanks, ClippingByNormIsThatOfTheWholeGradient) {
  test::run_ranks(GetParam(), [] {
    const Training training{.optimizer = optimizers()[0].second, .max_norm = 0.05};
    // The norm is a sum over 300 squares in another order: relative error below 300 * 2^-24, of steps of 0.1 * 0.05.
    const double difference = (trained(training, full_shard()) - trained(training, std::nullopt))
                                  .abs()
                                  .max()
                                  .item<double>();
    EXPECT_LE(difference, 1e-6);
    EXPECT_GT((trained(training, full_shard()) -
               trained({.optimizer = optimizers()[0].second}, full_shard()))
                  .abs()
                  .max()
                  .item<double>(),
              1e-3)
        << "the bound was never reached";
  });
}

TEST_P(ShardedOnRanks, EachRankHoldsItsShareOfTheOptimizersState) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    EXPECT_EQ(accelerator.distributed_type(), DistributedType::kFsdp);
    Net net = seeded_net();
    torch::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(0.01));
    auto [model, optimizer] = accelerator.prepare(net, adam);
    accelerator.backward(loss_of(model(tokens(4, 0))));
    optimizer.step();
    std::int64_t own = 0;
    for (const at::Tensor& piece : adam.param_groups()[0].params()) {
      if (!piece.requires_grad()) continue;  // the frozen layer
      own += piece.numel();
    }
    std::int64_t whole = 0;
    for (const at::Tensor& parameter : net->parameters()) {
      if (parameter.requires_grad()) whole += parameter.numel();
      if (!parameter.requires_grad()) continue;
      // One process alone has nothing to divide.
      EXPECT_EQ(sharding::is_stand_in(parameter.grad()), accelerator.num_processes() > 1);
    }
    const std::int64_t total =
        accelerator.reduce(at::full({1}, own, at::kLong)).item<std::int64_t>();
    EXPECT_EQ(total, whole);
    // A share, and what rounding to cache lines adds: 16 elements for each parameter and shard.
    EXPECT_LE(own, whole / accelerator.num_processes() + 16 * 10);
  });
}

TEST_P(ShardedOnRanks, PreparesTheOptimizerBeforeTheModelToo) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [optimizer, model] = accelerator.prepare(sgd, net);
    const at::Tensor before = flat_parameters(*net).clone();
    accelerator.backward(loss_of(model(tokens(4, 0))));
    optimizer.step();
    EXPECT_FALSE(flat_parameters(*net).equal(before));
  });
}

TEST_P(ShardedOnRanks, AParameterWithoutAGradientOnAnyRankIsPassedBy) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    net->uses_spare = false;
    // Weight decay would change a parameter whose gradient is zero.
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = net->spare->weight.detach().clone();
    accelerator.backward(loss_of(model(tokens(4, 0))));
    optimizer.step();
    EXPECT_TRUE(net->spare->weight.equal(before));
  });
}

TEST_P(ShardedOnRanks, AnExpertOfOneRankOnlyIsTrainedWithZerosFromTheOthers) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      Accelerator accelerator(
          {.ddp = {.find_unused_parameters = true}, .fsdp_plugin = std::move(plugin)});
      Net net = seeded_net();
      net->uses_spare = accelerator.is_main_process();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(loss_of(model(tokens(4, step + accelerator.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      }
      return flat_parameters(*net);
    };
    expect_equal(train(full_shard()), train(std::nullopt));
  });
}

TEST_P(ShardedOnRanks, TwoModelsTakeTurns) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      Accelerator accelerator({.fsdp_plugin = std::move(plugin)});
      set_seed(5);
      torch::nn::Linear maker(4, 4);
      torch::nn::Linear judge(4, 1);
      torch::optim::SGD maker_sgd(maker->parameters(), torch::optim::SGDOptions(0.1));
      torch::optim::SGD judge_sgd(judge->parameters(), torch::optim::SGDOptions(0.1));
      auto [m, j, mo, jo] = accelerator.prepare(maker, judge, maker_sgd, judge_sgd);
      const at::Tensor noise = at::ones({2, 4}) * (1 + accelerator.process_index());
      for (int step = 0; step < 3; ++step) {
        const at::Tensor made = m(noise);
        accelerator.backward(j(made.detach()).square().mean());
        jo.step();
        jo.zero_grad();
        accelerator.backward(-j(made).mean());
        mo.step();
        mo.zero_grad();
        jo.zero_grad();
      }
      return at::cat({flat_parameters(*maker), flat_parameters(*judge)});
    };
    // Whatever copies do with a forward whose backward comes after another one's, the ranks agree.
    const at::Tensor own = train(full_shard());
    const at::Tensor all = gather(own.unsqueeze(0));
    for (std::int64_t rank = 1; rank < all.size(0); ++rank) EXPECT_TRUE(all[rank].equal(all[0]));
  });
}

TEST_P(ShardedOnRanks, AnOverflowOnOneRankHoldsTheStepBackOnAll) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.mixed_precision = "fp16", .fsdp_plugin = full_shard()});
    torch::nn::Linear net(4, 4);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    // Only the last element of the bias gets an infinite gradient: it is in one rank's shard.
    at::Tensor weights = at::ones({4});
    weights[3] = std::numeric_limits<float>::infinity();
    accelerator.backward((model(at::ones({2, 4})) * weights).sum());
    optimizer.step();
    EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
    EXPECT_TRUE(flat_parameters(*net).equal(before));
  });
}

TEST_P(ShardedOnRanks, ABackwardOfTheUsersOwnIsSettledByTheStep) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    loss_of(model(tokens(4, 0))).backward();
    optimizer.step();
    EXPECT_FALSE(flat_parameters(*net).equal(before));
  });
}

TEST_P(ShardedOnRanks, ABackwardOfTheUsersOwnMayLackTheModelOnSomeRanks) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    Net net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    const at::Tensor loss = loss_of(model(tokens(4, 0)));
    if (accelerator.is_main_process()) loss.backward();
    optimizer.step();
    EXPECT_FALSE(flat_parameters(*net).equal(before));
  });
}

TEST_P(ShardedOnRanks, OneOptimizerOfTwoModelsIsPreparedBetweenThem) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      AcceleratorOptions options;
      options.fsdp_plugin = std::move(plugin);
      Accelerator accelerator(options);
      set_seed(5);
      torch::nn::Linear first(4, 4);
      torch::nn::Linear second(4, 1);
      std::vector<at::Tensor> parameters = first->parameters();
      for (const at::Tensor& parameter : second->parameters()) parameters.push_back(parameter);
      torch::optim::Adagrad adagrad(parameters, torch::optim::AdagradOptions(0.1));
      auto [a, optimizer, b] = accelerator.prepare(first, adagrad, second);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(
            b(a(at::ones({2, 4}) * (1 + accelerator.process_index()))).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
      return at::cat({flat_parameters(*first), flat_parameters(*second)});
    };
    expect_equal(train(full_shard()), train(std::nullopt));
  });
}

TEST_P(ShardedOnRanks, GradientsOfBatchesWithoutSyncAreAddedWhereTheLastOneHasNone) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      AcceleratorOptions options;
      options.fsdp_plugin = std::move(plugin);
      options.gradient_accumulation_steps = 2;
      options.ddp.find_unused_parameters = true;
      Accelerator accelerator(options);
      Net net = seeded_net();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 4; ++step) {
        auto accumulating = accelerator.accumulate(model);
        net->uses_spare = step % 2 == 0;  // only in batches that do not synchronise
        accelerator.backward(loss_of(model(tokens(4, step + accelerator.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      }
      return flat_parameters(*net);
    };
    const at::Tensor sharded = train(full_shard());
    // One process steps on the gradients of both batches; so do copies and shards.
    expect_equal(sharded, train(std::nullopt));
    const Net untrained = seeded_net();
    EXPECT_FALSE(sharded.equal(flat_parameters(*untrained)));
  });
}

TEST_P(ShardedOnRanks, TwoForwardsBeforeTheirBackwardsAreBothReduced) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    const at::Tensor one = model(at::ones({1, 4})).sum();
    const at::Tensor two = model(at::ones({1, 4})).sum();
    accelerator.backward(one);
    accelerator.backward(two);
    optimizer.step();
    // Each gives every parameter a gradient of 1.
    EXPECT_TRUE((before - 2.0).allclose(flat_parameters(*net)));
  });
}

// A loss for the log, without torch::NoGradGuard.
TEST_P(ShardedOnRanks, AForwardOfOneRankBetweenBackwardAndStepIsItsOwn) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](bool looks) {
      Accelerator accelerator({.fsdp_plugin = full_shard()});
      Net net = seeded_net();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(loss_of(model(tokens(4, step + accelerator.process_index()))));
        if (looks && accelerator.is_last_process()) {
          EXPECT_TRUE(std::isfinite(loss_of(model(tokens(4, step))).template item<float>()));
        }
        accelerator.clip_grad_norm_(net->parameters(), 1.0);
        if (looks && accelerator.is_main_process()) std::ignore = model(tokens(4, step));
        optimizer.step();
        if (looks && accelerator.is_main_process()) std::ignore = model(tokens(4, step));
        optimizer.zero_grad();
      }
      return flat_parameters(*net);
    };
    expect_equal(train(true), train(false));
  });
}

TEST_P(ShardedOnRanks, AnExceptionInABackwardLeavesNothingBehind) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1.0));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    at::Tensor input = at::ones({1, 4}).requires_grad_(true);
    input.register_hook([](const at::Tensor&) -> at::Tensor { throw std::runtime_error("stop"); });
    EXPECT_ANY_THROW(accelerator.backward((model(input) * 100).sum()));
    accelerator.backward(model(at::ones({1, 4})).sum());
    optimizer.step();
    const at::Tensor change = before - flat_parameters(*net);
    // One process keeps what the broken backward has added to gradients; shards drop what was reduced of it.
    if (accelerator.num_processes() > 1) {
      EXPECT_TRUE(change.allclose(at::ones_like(change)));
    }
  });
}

// Where ranks cannot share memory each has its own copy: rank 0 may not make files of any size here.
TEST_P(ShardedOnRanks, ShardGradOpNeedsNoSharedMemory) {
  test::run_ranks(GetParam(), [] {
    if (GetParam() == 1) return;
    const auto train = [](bool is_sharded) {
      AcceleratorOptions options;
      if (is_sharded)
        options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kShardGradOp;
      Accelerator accelerator(options);
      Net net = seeded_net();
      torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.01));
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit none{0, RLIM_INFINITY};
      if (accelerator.is_main_process()) ::setrlimit(RLIMIT_FSIZE, &none);
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const rlimit any{RLIM_INFINITY, RLIM_INFINITY};
      ::setrlimit(RLIMIT_FSIZE, &any);
      EXPECT_EQ(shared_bytes_of_this_process(), 0);
      for (int step = 0; step < 3; ++step) {
        accelerator.backward(loss_of(model(tokens(4, step + accelerator.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      }
      return flat_parameters(*net);
    };
    expect_equal(train(true), train(false));
  });
}

TEST_P(ShardedOnRanks, IgnoredModulesStayWholeAndAreAveraged) {
  test::run_ranks(GetParam(), [] {
    const auto train = [](std::optional<FullyShardedDataParallelPlugin> plugin) {
      Accelerator accelerator({.fsdp_plugin = std::move(plugin)});
      Net net = seeded_net();
      torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      for (int step = 0; step < 2; ++step) {
        accelerator.backward(loss_of(model(tokens(4, step + accelerator.process_index()))));
        optimizer.step();
        optimizer.zero_grad();
      }
      return flat_parameters(*net);
    };
    expect_equal(train(FullyShardedDataParallelPlugin{.ignored_modules = "first|sec.*"}),
                 train(std::nullopt));
  });
}

TEST_P(ShardedOnRanks, TheParametersAreInMemoryOnceForAllRanks) {
  test::run_ranks(GetParam(), [] {
    Accelerator accelerator({.fsdp_plugin = full_shard()});
    if (accelerator.num_processes() == 1) return;
    torch::nn::Linear net(512, 1024);
    auto model = accelerator.prepare(net);
    const at::Tensor own = at::full({1}, shared_bytes_of_this_process(), at::kDouble);
    const double total = accelerator.reduce(own).item<double>();
    const double parameters = 4.0 * (512 * 1024 + 1024);
    // Padding to 64 bytes for each rank, and to pages.
    EXPECT_GE(total, 0.99 * parameters);
    EXPECT_LE(total, 1.01 * parameters + 2 * 4096);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedOnRanks, ::testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace accel::sharded_model_test
