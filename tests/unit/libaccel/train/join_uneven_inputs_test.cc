// Ranks that run out of batches before others: what is alike afterwards, and what goes wrong in words. That losses and weights are
// those of PyTorch's Join is in tests/peer/uneven_inputs.py.

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/numbers.h"
#include "tests/support/rank_group.h"

namespace accel::join_uneven_inputs_test {
namespace {

using test::Numbers;
using ::testing::HasSubstr;

at::Tensor sample(std::int64_t number) {
  return at::arange(4, at::kFloat).view({1, 4}) / 4.0 + 0.1 * static_cast<double>(number);
}

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

void expect_equal_on_all_ranks(const at::Tensor& values, const char* what) {
  const at::Tensor all = gather(values.unsqueeze(0));
  for (std::int64_t rank = 1; rank < all.size(0); ++rank)
    EXPECT_TRUE(all[rank].equal(all[0])) << what << " of rank " << rank << " differ from rank 0";
}

torch::nn::Sequential small_net() {
  set_seed(1);
  return torch::nn::Sequential(
      torch::nn::Linear(4, 8), torch::nn::BatchNorm1d(8), torch::nn::Linear(8, 1));
}

// Rows of two, so that BatchNorm has something to average.
at::Tensor loss_of(const at::Tensor& output) {
  return (output - 1.0).square().mean();
}

struct Strategy {
  const char* name;
  const char* backend;
  int stage;  // of ZeRO; 0: copies
};

AcceleratorOptions options_of(const Strategy& strategy) {
  AcceleratorOptions options;
  options.init_process_group.backend = strategy.backend;
  if (strategy.stage > 0) options.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = strategy.stage};
  return options;
}

class JoinUnevenInputs : public ::testing::TestWithParam<std::tuple<Strategy, int>> {
 protected:
  [[nodiscard]] static Strategy strategy() { return std::get<0>(GetParam()); }
  [[nodiscard]] static int num_ranks() { return std::get<1>(GetParam()); }
};

// Two epochs: the second begins from states of optimizers that all ranks must have alike.
TEST_P(JoinUnevenInputs, LeavesWeightsAndRatesAlikeOnAllRanks) {
  test::run_ranks(num_ranks(), [] {
    Accelerator accelerator(options_of(strategy()));
    torch::nn::Sequential net = small_net();
    auto sgd = std::make_shared<torch::optim::SGD>(net->parameters(),
                                                   torch::optim::SGDOptions(0.05).momentum(0.9));
    LambdaLR schedule(*sgd, [](std::int64_t step) { return 1.0 / static_cast<double>(1 + step); });
    auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, schedule);
    const int rank = accelerator.process_index();

    for (int epoch = 0; epoch < 2; ++epoch) {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      const int count = epoch == 0 ? 2 + 2 * rank : 5 - rank;
      for (int batch = 0; batch < count; ++batch) {
        const at::Tensor input = at::cat({sample(batch + rank), sample(batch + 2 * rank + 1)});
        accelerator.backward(loss_of(model(input)));
        accelerator.clip_grad_norm_(model->parameters(), 0.5);
        optimizer.step();
        scheduler.step();
        optimizer.zero_grad();
      }
    }

    expect_equal_on_all_ranks(flat_parameters(*net), "weights");
    expect_equal_on_all_ranks(at::full({1}, scheduler.get_last_lr()[0], at::kDouble), "rates");
    // What remains of an epoch of even batches, without a scope: states that differed would show.
    for (int batch = 0; batch < 2; ++batch) {
      accelerator.backward(loss_of(model(at::cat({sample(batch), sample(rank)}))));
      optimizer.step();
      optimizer.zero_grad();
    }
    expect_equal_on_all_ranks(flat_parameters(*net), "weights after a later epoch");
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies,
                         JoinUnevenInputs,
                         ::testing::Combine(::testing::Values(Strategy{"CopiesShm", "shm", 0},
                                                              Strategy{"CopiesGloo", "gloo", 0},
                                                              Strategy{"Zero1", "shm", 1},
                                                              Strategy{"Zero2", "shm", 2},
                                                              Strategy{"Zero2Gloo", "gloo", 2},
                                                              Strategy{"Zero3", "shm", 3}),
                                            ::testing::Values(2, 4)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  std::to_string(std::get<1>(info.param)) + "Ranks";
                         });

std::string name_of(const ::testing::TestParamInfo<Strategy>& info) {
  return info.param.name;
}

// Tokens [n, 4] of a rank's batch: rank 0 has one batch, rank 1 three.
at::Tensor tokens(int rank, int batch) {
  constexpr std::int64_t kLengths[2][3] = {{3, 0, 0}, {2, 5, 1}};
  const std::int64_t n = kLengths[rank][batch];
  return (at::arange(n * 4, at::kFloat).view({n, 4}) / 8.0 + rank + 0.5 * batch).sin();
}

torch::nn::Linear seeded_linear() {
  set_seed(3);
  return torch::nn::Linear(4, 1);
}

class WeightsWithin : public ::testing::TestWithParam<Strategy> {};

// One process takes all tokens of a step together. A gradient is a sum over at most 5 tokens of terms of order 1, rounded and weighted
// in another order: at most 60 roundings of 2^-24; a step of rate 0.5 passes on earlier errors amplified by at most 2, over 3 steps.
TEST_P(WeightsWithin, GiveTheMeanOverTheTokensOfThoseThatStillTrain) {
  test::run_ranks(2, [] {
    Accelerator accelerator(options_of(GetParam()));
    torch::nn::Linear net = seeded_linear();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int rank = accelerator.process_index();
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (int batch = 0; batch < (rank == 0 ? 1 : 3); ++batch) {
        const at::Tensor input = tokens(rank, batch);
        accelerator.backward(loss_of(model(input)), {.weight = static_cast<double>(input.size(0))});
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    torch::nn::Linear alone = seeded_linear();
    torch::optim::SGD alone_sgd(alone->parameters(), torch::optim::SGDOptions(0.5));
    for (int batch = 0; batch < 3; ++batch) {
      loss_of(alone(at::cat({tokens(0, batch), tokens(1, batch)}))).backward();
      alone_sgd.step();
      alone_sgd.zero_grad();
    }
    const at::Tensor difference = (flat_parameters(*net) - flat_parameters(*alone)).abs().max();
    EXPECT_LE(difference.item<double>(), 60 * std::pow(2.0, -24) * 0.5 * 8);
    expect_equal_on_all_ranks(flat_parameters(*net), "weights");

    // Afterwards all ranks know the unit of weights: none asks for it alone.
    accelerator.backward(loss_of(model(sample(rank))), {.weight = 1.0});
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies,
                         WeightsWithin,
                         ::testing::Values(Strategy{"CopiesShm", "shm", 0},
                                           Strategy{"CopiesGloo", "gloo", 0},
                                           Strategy{"Zero2", "shm", 2},
                                           Strategy{"Zero3", "shm", 3}),
                         name_of);

TEST(JoinUnevenInputsOnRanks, AForwardOfAModelThatIsNotNamedIsRefused) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    const auto model = accelerator.prepare(seeded_linear());
    const auto other = accelerator.prepare(seeded_linear());
    const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
    try {
      (void)other(sample(0));
      FAIL() << "it was taken";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("does not name"));
    }
  });
}

TEST(JoinUnevenInputsOnRanks, ReproducibleTrainingIsRefused) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2, .reproducible = true});
    const auto model = accelerator.prepare(seeded_linear());
    try {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      FAIL() << "it was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    }
  });
}

class AccumulationWithin : public ::testing::TestWithParam<Strategy> {};

TEST_P(AccumulationWithin, EndsOnAllRanksWithTheLastBatchOfAny) {
  test::run_ranks(2, [] {
    AcceleratorOptions options = options_of(GetParam());
    options.gradient_accumulation_steps = 2;
    Accelerator accelerator(options);
    torch::nn::Linear net = [] {
      set_seed(2);
      return torch::nn::Linear(1, 1);
    }();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01));
    // Ranks get 4 and 3 batches.
    DataLoader numbers(Numbers{7}, {.batch_size = 1});
    auto [model, optimizer, loader] = accelerator.prepare(net, sgd, numbers);
    std::vector<bool> synced;
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (const at::Tensor& batch : loader) {
        const auto accumulating = accelerator.accumulate(model);
        accelerator.backward(loss_of(model(batch.to(at::kFloat).view({-1, 1}))));
        optimizer.step();
        optimizer.zero_grad();
        synced.push_back(accelerator.sync_gradients());
      }
    }
    const std::vector<bool> expected = accelerator.process_index() == 0
                                           ? std::vector<bool>{false, true, true, true}
                                           : std::vector<bool>{false, true, true};
    EXPECT_EQ(synced, expected);
    expect_equal_on_all_ranks(flat_parameters(*net), "weights");
  });
}

INSTANTIATE_TEST_SUITE_P(Strategies,
                         AccumulationWithin,
                         ::testing::Values(Strategy{"CopiesShm", "shm", 0},
                                           Strategy{"CopiesGloo", "gloo", 0},
                                           Strategy{"Zero1", "shm", 1},
                                           Strategy{"Zero2", "shm", 2}),
                         name_of);

// A scale of the loss that all ranks change alike, and a hook in place of the average.
TEST(JoinUnevenInputsOnRanks, HalfPrecisionAndHooksWorkWithin) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.mixed_precision = "fp16";
    options.grad_scaler.growth_interval = 2;
    options.ddp.comm_hook = DDPCommunicationHookType::kFp16;
    Accelerator accelerator(options);
    torch::nn::Sequential net = small_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const int rank = accelerator.process_index();
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (int batch = 0; batch < 2 + 4 * rank; ++batch) {
        accelerator.backward(loss_of(model(at::cat({sample(batch), sample(batch + rank + 1)}))));
        accelerator.clip_grad_norm_(model->parameters(), 1.0);
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    expect_equal_on_all_ranks(flat_parameters(*net), "weights");
    expect_equal_on_all_ranks(at::full({1}, accelerator.scaler()->get_scale(), at::kDouble),
                              "scales");
  });
}

TEST(JoinUnevenInputsOnRanks, EvenBatchesAreThoseOfTheScopeWithinIt) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    DataLoader numbers(Numbers{3}, {.batch_size = 1});
    auto [model, loader] = accelerator.prepare(net, numbers);
    const std::size_t own = accelerator.process_index() == 0 ? 2 : 1;
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      EXPECT_EQ(test::pass_of(loader).size(), own);
    }
    EXPECT_EQ(test::pass_of(loader).size(), 2U);
    // Of the Accelerator: loaders that are prepared keep their own.
    accelerator.set_even_batches(false);
    EXPECT_FALSE(accelerator.even_batches());
    { const auto joining = accelerator.join_uneven_inputs(model); }
    EXPECT_EQ(test::pass_of(loader).size(), 2U);
  });
}

TEST(JoinUnevenInputsOnRanks, IterableLoadersKeepTheirsWithAWarning) {
  const auto exits = test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(1, 1);
    DataLoader numbers(std::vector<std::int64_t>{1, 2, 3}, {.batch_size = 1});
    auto [model, loader] = accelerator.prepare(net, numbers);
    const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = true});
  });
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_THAT(
      exits[0].output,
      HasSubstr("Overriding even_batches is only supported for map-style datasets, yet some "
                "dataloaders given were iterable"));
}

// Parameters that no rank uses stay as they are: a gradient of zeros would let their momentum move them.
TEST(JoinUnevenInputsOnRanks, AnUnusedParameterGetsNoGradient) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.find_unused_parameters = true}});
    set_seed(3);
    torch::nn::Linear used(4, 1);
    torch::nn::Linear spare(4, 1);
    struct TwoImpl : torch::nn::Module {
      torch::nn::Linear used, spare;
      TwoImpl(torch::nn::Linear a, torch::nn::Linear b)
          : used(register_module("used", std::move(a))),
            spare(register_module("spare", std::move(b))) {}
      at::Tensor forward(const at::Tensor& input) { return used(input); }
    };
    auto net = std::make_shared<TwoImpl>(used, spare);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = spare->weight.detach().clone();
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (int batch = 0; batch < 1 + 3 * accelerator.process_index(); ++batch) {
        accelerator.backward(loss_of(model(sample(batch))));
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    EXPECT_TRUE(spare->weight.equal(before));
    expect_equal_on_all_ranks(flat_parameters(*net), "weights");
  });
}

// Losses and steps without the Accelerator: the backward is the program's own, and module->zero_grad() clears.
TEST(JoinUnevenInputsOnRanks, TheProgramMayRunBackwardItself) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    set_seed(4);
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (int batch = 0; batch < 2 + 2 * accelerator.process_index(); ++batch) {
        loss_of(model(sample(batch))).backward();
        optimizer.step();
        net->zero_grad();
      }
    }
    expect_equal_on_all_ranks(flat_parameters(*net), "weights");
  });
}

class DeathWithin : public ::testing::TestWithParam<Strategy> {};

TEST_P(DeathWithin, EndsWithAnErrorOnTheOthers) {
  const auto exits = test::run_ranks(
      4,
      [] {
        Accelerator accelerator(options_of(GetParam()));
        torch::nn::Sequential net = small_net();
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
        auto [model, optimizer] = accelerator.prepare(net, sgd);
        const int rank = accelerator.process_index();
        try {
          const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
          for (int batch = 0; batch < 5 * rank; ++batch) {  // rank 0 waits at once
            if (rank == 1 && batch == 2) std::_Exit(9);
            accelerator.backward(loss_of(model(at::cat({sample(batch), sample(rank)}))));
            optimizer.step();
            optimizer.zero_grad();
          }
        } catch (const Error& error) {
          std::_Exit(error.code() == ErrorCode::kPeerLost ? 3 : 4);
        }
        std::_Exit(5);
      },
      {.expect_success = false});
  if (test::rank_of_this_process() >= 0) return;
  EXPECT_EQ(exits[1].status, 9);
  for (const int rank : {0, 2, 3}) EXPECT_EQ(exits[rank].status, 3) << exits[rank].output;
}

INSTANTIATE_TEST_SUITE_P(Strategies,
                         DeathWithin,
                         ::testing::Values(Strategy{"CopiesShm", "shm", 0},
                                           Strategy{"CopiesGloo", "gloo", 0},
                                           Strategy{"Zero2", "shm", 2}),
                         name_of);

TEST(JoinUnevenInputsOnRanks, RanksThatDoDifferentThingsSayWhich) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(4, 1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    try {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      if (accelerator.process_index() == 0) {
        optimizer.zero_grad();
      } else {
        optimizer.step();
      }
      FAIL() << "one rank stepped while another cleared gradients";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("do different things in join_uneven_inputs()"));
    }
  });
}

TEST(JoinUnevenInputsOnRanks, AModelThatIsNotNamedIsRefused) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(4, 1);
    torch::nn::Linear other(4, 1);
    auto [model, second] = accelerator.prepare(net, other);
    try {
      const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false});
      accelerator.backward(loss_of(second(sample(1))));
      FAIL() << "a model was trained whose gradients joined ranks do not know of";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.what(), HasSubstr("does not name"));
    }
    const auto both =
        accelerator.join_uneven_inputs(model, second, JoinOptions{.even_batches = false});
    for (int batch = 0; batch < 1 + accelerator.process_index(); ++batch)
      accelerator.backward(loss_of(model(sample(batch))) + loss_of(second(sample(batch))));
  });
}

TEST(JoinUnevenInputsAlone, DoesNothing) {
  Accelerator accelerator;
  torch::nn::Linear net(4, 1);
  const auto model = accelerator.prepare(net);
  { const auto joining = accelerator.join_uneven_inputs(model, {.even_batches = false}); }
  PartialState::reset();
}

}  // namespace
}  // namespace accel::join_uneven_inputs_test
