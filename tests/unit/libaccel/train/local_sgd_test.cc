// LocalSGD: copies that train alone and are averaged.

#include <string>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/error.h>
#include <accel/fsdp.h>
#include <accel/local_sgd.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"

namespace accel::local_sgd_test {
namespace {

using ::testing::HasSubstr;

constexpr double kRate = 0.25;

torch::nn::Linear seeded_net() {
  set_seed(3);
  return torch::nn::Linear(4, 2);
}

at::Tensor batch_of(int rank, int step) {
  return at::arange(12, at::kFloat).view({3, 4}).add(rank * 5 + step).sin();
}

at::Tensor loss_of(const at::Tensor& output) {
  return (output - 1.0).square().mean();
}

at::Tensor weights(const torch::nn::Linear& net) {
  return at::cat({net->weight.detach().flatten(), net->bias.detach().flatten()});
}

// Two copies by hand, averaged after each `every` steps and at the end.
at::Tensor trained_by_hand(int steps, int every) {
  std::vector<torch::nn::Linear> nets = {seeded_net(), seeded_net()};
  std::vector<torch::optim::SGD> optimizers;
  for (auto& net : nets)
    optimizers.emplace_back(net->parameters(), torch::optim::SGDOptions(kRate));
  const auto average = [&] {
    const at::NoGradGuard no_grad;
    for (std::size_t i = 0; i < nets[0]->parameters().size(); ++i) {
      const at::Tensor mean = (nets[0]->parameters()[i] + nets[1]->parameters()[i]) / 2;
      for (auto& net : nets) net->parameters()[i].copy_(mean);
    }
  };
  for (int step = 1; step <= steps; ++step) {
    for (int rank = 0; rank < 2; ++rank) {
      optimizers[rank].zero_grad();
      loss_of(nets[rank](batch_of(rank, step))).backward();
      optimizers[rank].step();
    }
    if (step % every == 0) average();
  }
  average();
  return weights(nets[0]);
}

TEST(LocalSGD, CopiesTrainAloneAndAreAveragedEveryFewStepsAndAtTheEnd) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    bool differed = false;
    {
      LocalSGD local_sgd(accelerator, model, 2);
      for (int step = 1; step <= 5; ++step) {
        accelerator.backward(loss_of(model(batch_of(accelerator.process_index(), step))));
        optimizer.step();
        optimizer.zero_grad();
        local_sgd.step();
        const at::Tensor all = accelerator.gather(weights(net).unsqueeze(0));
        differed = differed || !all[0].equal(all[1]);
      }
    }

    EXPECT_TRUE(differed);
    EXPECT_TRUE(weights(net).equal(trained_by_hand(5, 2)));
  });
}

TEST(LocalSGD, GradientsAreExchangedAgainAfterIt) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    { const LocalSGD local_sgd(accelerator, model, 2); }

    accelerator.backward(loss_of(model(batch_of(accelerator.process_index(), 1))));

    const at::Tensor all = accelerator.gather(net->weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

TEST(LocalSGD, DisabledChangesNothing) {
  test::run_ranks(2, [] {
    Accelerator accelerator;
    torch::nn::Linear net = seeded_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(kRate));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    const LocalSGD local_sgd(accelerator, model, 2, /*enabled=*/false);

    accelerator.backward(loss_of(model(batch_of(accelerator.process_index(), 1))));

    const at::Tensor all = accelerator.gather(net->weight.grad().unsqueeze(0));
    EXPECT_TRUE(all[0].equal(all[1]));
  });
}

TEST(LocalSGD, RefusesModelsThatAreDividedAndNumbersBelowOne) {
  test::run_ranks(2, [] {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace();
    Accelerator accelerator(options);
    auto model = accelerator.prepare(seeded_net());

    EXPECT_THAT([&] { LocalSGD(accelerator, model, 2); },
                ::testing::Throws<Error>(::testing::Property(
                    &Error::message, HasSubstr("whole (no FSDP, DeepSpeed or Megatron-LM)"))));
  });
  Accelerator accelerator;
  auto model = accelerator.prepare(seeded_net());
  EXPECT_THROW(LocalSGD(accelerator, model, 0), Error);
  PartialState::reset();
}

}  // namespace
}  // namespace accel::local_sgd_test
