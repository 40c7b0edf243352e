// Several ranks: that they train one model, and what they say when they cannot.

#include <cmath>
#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/mapped_memory.h"
#include "tests/support/rank_group.h"

namespace accel::ddp_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Two layers, and a third that forward() may leave out.
struct NetImpl : torch::nn::Module {
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear spare{nullptr};
  bool uses_spare = true;

  NetImpl() {
    first = register_module("first", torch::nn::Linear(4, 8));
    second = register_module("second", torch::nn::Linear(8, 1));
    spare = register_module("spare", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = first(input).tanh();
    at::Tensor output = second(hidden);
    if (uses_spare) output = output + spare(hidden);
    return output;
  }
};
TORCH_MODULE(Net);

Net seeded_net(std::uint64_t seed) {
  set_seed(seed);
  return Net();
}

// [n, 4] the same on every rank.
at::Tensor samples(std::int64_t n) {
  return at::arange(n * 4, at::kFloat).view({n, 4}) / static_cast<double>(n * 4);
}

at::Tensor loss_of(const at::Tensor& output) {
  return (output - 1.0).square().mean();
}

at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.detach().flatten());
  return at::cat(parts);
}

at::Tensor flat_gradients(const torch::nn::Module& module) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& parameter : module.parameters())
    parts.push_back(parameter.grad().flatten());
  return at::cat(parts);
}

// Bound on the difference between a gradient that is averaged over parts of a batch and one that is
// averaged over the whole: sums of the same terms in another order. A gradient of this net is a sum over
// at most 8 samples x 8 hidden units of terms of order 1, so at most 64 roundings of 2^-24 each, and a
// step multiplies it by the learning rate, 0.5; over `steps` steps the errors add up, and each step
// passes earlier errors on amplified by at most 2 (the loss is smooth with curvature below 2 here).
double rounding_bound(int steps) {
  return 64 * std::pow(2.0, -24) * 0.5 * std::pow(2.0, steps);
}

// Steps `net` on one process with whole batches.
void train_alone(Net& net, const at::Tensor& batch, int steps) {
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5));
  for (int step = 0; step < steps; ++step) {
    loss_of(net(batch)).backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

void expect_equal_on_all_ranks(const at::Tensor& values) {
  const at::Tensor all = gather(values.unsqueeze(0));
  for (std::int64_t rank = 1; rank < all.size(0); ++rank) {
    EXPECT_TRUE(all[rank].equal(all[0])) << "rank " << rank << " differs from rank 0";
  }
}

class DdpOnRanks : public ::testing::TestWithParam<int> {};

TEST_P(DdpOnRanks, SmallBatchesOnRanksEqualTheBigBatchOnOne) {
  test::run_ranks(GetParam(), [] {
    constexpr int kSteps = 4;
    Accelerator accelerator;
    const int num_ranks = accelerator.num_processes();
    const at::Tensor batch = samples(8);
    Net reference = seeded_net(1);
    Net net = seeded_net(1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor own = batch.chunk(num_ranks)[accelerator.process_index()];

    for (int step = 0; step < kSteps; ++step) {
      accelerator.backward(loss_of(model(own)));
      optimizer.step();
      optimizer.zero_grad();
    }
    train_alone(reference, batch, kSteps);

    expect_equal_on_all_ranks(flat_parameters(*net));
    EXPECT_TRUE(
        flat_parameters(*net).allclose(flat_parameters(*reference), 0.0, rounding_bound(kSteps)));
  });
}

TEST_P(DdpOnRanks, AccumulatedSmallBatchesEqualTheBigBatchToo) {
  test::run_ranks(GetParam(), [] {
    constexpr int kSteps = 3;
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    const at::Tensor batch = samples(8);
    Net reference = seeded_net(1);
    Net net = seeded_net(1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor own = batch.chunk(accelerator.num_processes())[accelerator.process_index()];

    for (int step = 0; step < kSteps; ++step) {
      for (const at::Tensor& part : own.chunk(2)) {
        const auto scope = accelerator.accumulate(model);
        accelerator.backward(loss_of(model(part)));
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    train_alone(reference, batch, kSteps);

    expect_equal_on_all_ranks(flat_parameters(*net));
    EXPECT_TRUE(
        flat_parameters(*net).allclose(flat_parameters(*reference), 0.0, rounding_bound(kSteps)));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, DdpOnRanks, ::testing::Values(2, 4));

TEST(Ddp, ModelStartsAsTheOneOfRank0) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net expected = seeded_net(100);
    Net net = seeded_net(100 + static_cast<std::uint64_t>(accelerator.process_index()));

    accelerator.prepare(net);

    EXPECT_TRUE(flat_parameters(*net).equal(flat_parameters(*expected)));
  });
}

TEST(Ddp, NoSyncKeepsGradientsLocalAndTheNextBackwardReducesTheSum) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net(1);
    auto model = accelerator.prepare(net);
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];
    {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(loss_of(model(own)));
    }
    const at::Tensor local = flat_gradients(*net).clone();
    const at::Tensor all = gather(local.unsqueeze(0));

    accelerator.backward(loss_of(model(own)));

    EXPECT_FALSE(all[0].equal(all[1])) << "the gradients were reduced";
    expect_equal_on_all_ranks(flat_gradients(*net));
    // Twice the same batch: the reduced sum is twice the mean of the local gradients.
    EXPECT_TRUE(flat_gradients(*net).allclose(all[0] + all[1], 0.0, rounding_bound(1)));
  });
}

TEST(Ddp, TriggerSyncReducesABackwardWhoseForwardRanWithout) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net(1);
    auto model = accelerator.prepare(net);
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];
    at::Tensor first;
    at::Tensor second;
    {
      const auto scope = accelerator.no_sync(model);
      first = loss_of(model(own));
      second = loss_of(model(own));
    }
    {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(first);
    }
    {
      const auto scope = accelerator.trigger_sync_in_backward(model);
      accelerator.backward(second);
    }

    expect_equal_on_all_ranks(flat_gradients(*net));
  });
}

TEST(Ddp, SeveralModelsAccumulateTogether) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_steps = 2});
    Net left = seeded_net(1);
    Net right = seeded_net(2);
    auto [model, other] = accelerator.prepare(left, right);
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];
    std::vector<bool> differ;

    for (int batch = 0; batch < 2; ++batch) {
      const auto scope = accelerator.accumulate(model, other);
      accelerator.backward(loss_of(model(own)) + loss_of(other(own)));
      const at::Tensor all =
          gather(at::cat({flat_gradients(*left), flat_gradients(*right)}).unsqueeze(0));
      differ.push_back(!all[0].equal(all[1]));
    }

    EXPECT_THAT(differ, ::testing::ElementsAre(true, false));
  });
}

TEST(Ddp, SyncEachBatchReducesEveryBatchAndStepsAtTheEnd) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.gradient_accumulation_plugin = GradientAccumulationPlugin{
                                 .num_steps = 2, .sync_each_batch = true}});
    Net net = seeded_net(1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor before = flat_parameters(*net).clone();
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];

    const auto scope = accelerator.accumulate(model);
    accelerator.backward(loss_of(model(own)));
    optimizer.step();

    expect_equal_on_all_ranks(flat_gradients(*net));
    EXPECT_TRUE(flat_parameters(*net).equal(before));
  });
}

TEST(Ddp, BuffersOfRank0ReachTheOthersBeforeTheNextForward) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::BatchNorm1d norm(4);
    auto model = accelerator.prepare(norm);
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];
    at::Tensor means;
    for (int step = 0; step < 2; ++step) {
      means = gather(norm->running_mean.unsqueeze(0));
      accelerator.backward(model(own).sum());
    }

    const at::Tensor after_forward = gather(norm->running_mean.unsqueeze(0));
    norm->eval();
    model(own);

    EXPECT_FALSE(means[0].equal(means[1])) << "each rank follows its own batch";
    EXPECT_FALSE(after_forward[0].equal(after_forward[1]));
    expect_equal_on_all_ranks(norm->running_mean);
  });
}

TEST(Ddp, AParameterWithoutGradientIsNamed) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net(1);
    net->uses_spare = false;
    auto model = accelerator.prepare(net);
    accelerator.backward(loss_of(model(samples(8))));

    try {
      model(samples(8));
      FAIL() << "the second forward went on";
    } catch (const Error& error) {
      EXPECT_THAT(error.message(), HasSubstr("spare.weight, spare.bias"));
      EXPECT_THAT(error.message(), Not(HasSubstr("first.weight")));
      EXPECT_THAT(error.remedy(), HasSubstr("find_unused_parameters"));
    }
  });
}

TEST(Ddp, FindUnusedParametersLetsRanksUseDifferentParts) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.find_unused_parameters = true}});
    Net net = seeded_net(1);
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);

    for (int step = 0; step < 3; ++step) {
      net->uses_spare = accelerator.process_index() == 0 && step > 0;
      accelerator.backward(loss_of(model(samples(8))));
      if (step == 0) {
        EXPECT_FALSE(net->spare->weight.grad().defined()) << "no rank used it";
      }
      optimizer.step();
      optimizer.zero_grad();
    }

    expect_equal_on_all_ranks(flat_parameters(*net));
  });
}

TEST(Ddp, StaticGraphReducesParametersThatAreUsedSeveralTimes) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.static_graph = true}});
    torch::nn::Linear square(4, 4);
    auto model = accelerator.prepare(square);
    const at::Tensor own = samples(8).chunk(2)[accelerator.process_index()];

    for (int step = 0; step < 3; ++step) {
      square->zero_grad();
      const at::Tensor once = model(own);
      accelerator.backward(loss_of(square(once)));
    }

    expect_equal_on_all_ranks(flat_gradients(*square));
  });
}

TEST(Ddp, DifferentModelsAreRefusedOnEveryRankNamingTheParameter) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net(4, 2 + accelerator.process_index());

    try {
      accelerator.prepare(net);
      FAIL() << "prepared different models";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kShapeMismatch);
      EXPECT_THAT(error.message(), HasSubstr("rank 1"));
      EXPECT_THAT(error.message(), HasSubstr("weight Float [3, 4]"));
      EXPECT_THAT(error.message(), HasSubstr("weight Float [2, 4]"));
    }
  });
}

// Both ranks see the same samples, so the average has the bits of each one's gradient.
TEST(Ddp, BucketsLieInMemoryThatTheRanksShareAndGiveTheSameGradients) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.gradient_as_bucket_view = true}});
    set_seed(3);
    torch::nn::Linear net(64, 500);
    torch::nn::Linear reference(64, 500);
    {
      const at::NoGradGuard no_grad;
      reference->weight.copy_(net->weight);
      reference->bias.copy_(net->bias);
    }
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.5));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const at::Tensor input = at::rand({3, 64});

    for (int step = 0; step < 3; ++step) {  // the Reducer makes its buckets anew after the first
      reference->zero_grad();
      loss_of(reference(input)).backward();
      accelerator.backward(loss_of(model(input)));

      EXPECT_TRUE(test::lies_in(net->weight.grad(), "accel-tensors")) << step;
      EXPECT_TRUE(net->weight.grad().equal(reference->weight.grad())) << step;
      EXPECT_TRUE(net->bias.grad().equal(reference->bias.grad())) << step;
      optimizer.zero_grad();
    }
  });
}

TEST(Ddp, FrozenParametersTakeNoPart) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net(1);
    net->uses_spare = false;
    for (at::Tensor& parameter : net->spare->parameters()) parameter.set_requires_grad(false);
    auto model = accelerator.prepare(net);

    for (int step = 0; step < 2; ++step) accelerator.backward(loss_of(model(samples(8))));

    EXPECT_FALSE(net->spare->weight.grad().defined());
  });
}

TEST(Ddp, SparseGradientsAreAveragedOnEveryBackend) {
  for (const char* backend : {"shm", "gloo"}) {
    test::run_ranks(2, [&] {
      Accelerator accelerator({.init_process_group = {.backend = backend}});
      torch::nn::Embedding table(torch::nn::EmbeddingOptions(4, 2).sparse(true));
      auto model = accelerator.prepare(table);

      // Rank r uses row r.
      accelerator.backward(model(at::full({1}, accelerator.process_index(), at::kLong)).sum());

      const at::Tensor gradient = table->weight.grad();
      EXPECT_TRUE(gradient.is_sparse());
      const at::Tensor expected = at::cat({at::full({2, 2}, 0.5), at::zeros({2, 2})});
      EXPECT_TRUE(gradient.to_dense().equal(expected)) << gradient;
    });
  }
}

TEST(Ddp, ARankThatReturnsEarlyIsReportedAsLost) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    Net net = seeded_net(1);
    auto model = accelerator.prepare(net);
    accelerator.backward(loss_of(model(samples(8))));
    if (accelerator.process_index() == 1) return;

    try {
      for (int step = 0; step < 2; ++step) accelerator.backward(loss_of(model(samples(8))));
      FAIL() << "trained on without rank 1";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
    }
  });
}

// Contract 4.11: 1 - n/10 from lr 1 on 2 ranks.
class SchedulerOnTwoRanks : public ::testing::Test {
 protected:
  static double rate_after_one_step(const AcceleratorOptions& options, int calls = 1) {
    Accelerator accelerator(options);
    at::Tensor weight = at::ones({1}).set_requires_grad(true);
    torch::optim::SGD sgd({weight}, torch::optim::SGDOptions(1.0));
    LambdaLR schedule(sgd, [](std::int64_t step) { return 1.0 - 0.1 * step; });
    auto [optimizer, scheduler] = accelerator.prepare(sgd, schedule);
    weight.mutable_grad() = at::ones({1});
    optimizer.step();
    for (int call = 0; call < calls; ++call) scheduler.step();
    return scheduler.get_last_lr()[0];
  }
};

TEST_F(SchedulerOnTwoRanks, StepsOncePerProcess) {
  test::run_ranks(2, [] { EXPECT_NEAR(rate_after_one_step({}), 0.8, 1e-12); });
}

TEST_F(SchedulerOnTwoRanks, SplitBatchesOrNoLinkStepOnce) {
  test::run_ranks(2, [] {
    EXPECT_NEAR(rate_after_one_step({.dataloader_config = {.split_batches = true}}), 0.9, 1e-12);
    EXPECT_NEAR(rate_after_one_step({.step_scheduler_with_optimizer = false}), 0.9, 1e-12);
    EXPECT_NEAR(rate_after_one_step({.step_scheduler_with_optimizer = false}, 2), 0.8, 1e-12);
  });
}

TEST_F(SchedulerOnTwoRanks, APlateauCountsABadEpochOnce) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::optim::SGD sgd({at::ones({1})}, torch::optim::SGDOptions(1.0));
    ReduceLROnPlateau plateau(sgd, {.factor = 0.5, .patience = 1});
    auto [optimizer, scheduler] = accelerator.prepare(sgd, plateau);
    std::vector<double> rates;

    for (int epoch = 0; epoch < 3; ++epoch) {
      scheduler.step(/*metric=*/1.0);
      rates.push_back(scheduler.get_last_lr()[0]);
    }

    EXPECT_THAT(rates, ::testing::ElementsAre(1.0, 1.0, 0.5)) << "two bad epochs after the first";
  });
}

TEST_F(SchedulerOnTwoRanks, OneCycleStopsAtItsTotalSteps) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::optim::SGD sgd({at::ones({1})}, torch::optim::SGDOptions(1.0));
    OneCycleLR schedule(sgd, {.max_lr = 0.01, .total_steps = 2});
    auto [optimizer, scheduler] = accelerator.prepare(sgd, schedule);

    scheduler.step();
    EXPECT_EQ(schedule.last_epoch(), 2);
    scheduler.step();

    EXPECT_EQ(schedule.last_epoch(), 2);
  });
}

// Contract 4.8: 22 samples in batches of 4 on 2 ranks; the last gather of 8 keeps 22 % 8 = 6.
TEST(GatherForMetrics, EverySampleIsSeenOnce) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    struct Numbers {
      [[nodiscard]] at::Tensor get(std::size_t index) const {
        return at::full({}, static_cast<std::int64_t>(index), at::kLong);
      }
      [[nodiscard]] std::size_t size() const { return 22; }
    };
    auto loader = accelerator.prepare(DataLoader(Numbers{}, {.batch_size = 4}));
    std::vector<std::int64_t> sizes;
    std::vector<at::Tensor> parts;

    for (const at::Tensor& batch : loader) {
      parts.push_back(accelerator.gather_for_metrics(batch));
      sizes.push_back(parts.back().size(0));
    }

    EXPECT_THAT(sizes, ::testing::ElementsAre(8, 8, 6));
    EXPECT_TRUE(std::get<0>(at::cat(parts).sort()).equal(at::arange(22, at::kLong)));
  });
}

TEST(Ddp, ATriggerOfOneRankIsSeenByAll) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    if (accelerator.process_index() == 1) accelerator.set_trigger();

    EXPECT_TRUE(accelerator.check_trigger());
    EXPECT_FALSE(accelerator.check_trigger());
  });
}

}  // namespace
}  // namespace accel::ddp_test
