// Gradients that are summed between nodes beside the backward: the bits of a backward that waits, and errors where the program is.

#include "libaccel/engine/gradients/overlapped_sums.h"

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/error_of.h"
#include "tests/support/fake_nodes.h"
#include "tests/support/rank_group.h"

namespace accel::overlapped_sums_test {
namespace {

using ::testing::HasSubstr;

constexpr const char* kVariable = "ACCEL_OVERLAP_COMM";

EnvLookup with(std::optional<std::string> value) {
  return [value](std::string_view name) { return name == kVariable ? value : std::nullopt; };
}

TEST(ShouldOverlap, IsForBucketsThatGoOverANetworkWhileOthersAreComputed) {
  EXPECT_TRUE(should_overlap("two_level", 2, with({})));
  EXPECT_FALSE(should_overlap("two_level", 1, with({}))) << "nothing is left to compute";
  EXPECT_FALSE(should_overlap("shm", 8, with({})));
}

TEST(ShouldOverlap, IsWhatTheVariableSaysBetweenNodes) {
  EXPECT_TRUE(should_overlap("two_level", 1, with("true")));
  EXPECT_FALSE(should_overlap("two_level", 8, with("0")));
  EXPECT_FALSE(should_overlap("shm", 8, with("1"))) << "there is no thread";
  const Error error = test::error_of([] { (void)should_overlap("two_level", 8, with("often")); });
  EXPECT_EQ(error.code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(error.message(), HasSubstr("ACCEL_OVERLAP_COMM is 'often'"));
}

void be_on_own_node(int places = 1) {
  const int rank = test::rank_of_this_process();
  const int ranks = std::atoi(std::getenv("WORLD_SIZE"));
  test::be_on_node(rank / places, ranks / places, rank % places, places);
}

bool has_communication_thread() {
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name == "accel-comm") return true;
  }
  return false;
}

torch::nn::Sequential deep_net() {
  set_seed(5);
  torch::nn::Sequential net;
  for (int layer = 0; layer < 6; ++layer) net->push_back(torch::nn::Linear(48, 48));
  return net;
}

at::Tensor sample(int rank, int step) {
  return at::arange(96, at::kFloat).view({2, 48}) / (96.0 + 7 * rank + step);
}

// Steps with a forward of their own, with one that is not synchronised before, and with clipping.
std::vector<at::Tensor> trained(bool overlaps, DistributedDataParallelKwargs options) {
  ::setenv(kVariable, overlaps ? "true" : "false", 1);
  options.bucket_cap_mb = 0.01;  // a layer each
  Accelerator accelerator({.ddp = options});
  EXPECT_EQ(PartialState().backend(), "two_level");
  torch::nn::Sequential net = deep_net();
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-2).momentum(0.5));
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  const int rank = accelerator.process_index();
  for (int step = 0; step < 4; ++step) {
    if (step == 1) {
      const auto scope = accelerator.no_sync(model);
      accelerator.backward(model(sample(rank, 20)).square().mean());
    }
    const at::Tensor loss = model(sample(rank, step)).square().mean();
    if (step == 2) {
      loss.backward();
    } else {
      accelerator.backward(loss);
    }
    (void)accelerator.clip_grad_norm_(net->parameters(), 0.5);
    optimizer.step();
    optimizer.zero_grad();
  }
  return net->parameters();
}

class OverlappedSumsOnNodes : public ::testing::TestWithParam<std::pair<int, int>> {};

TEST_P(OverlappedSumsOnNodes, GiveTheBitsOfABackwardThatWaits) {
  const auto [ranks, places] = GetParam();
  test::run_ranks(ranks, [places = places] {
    be_on_own_node(places);
    const std::vector<at::Tensor> expected = trained(false, {});
    EXPECT_FALSE(has_communication_thread());
    const std::vector<at::Tensor> beside = trained(true, {});
    EXPECT_TRUE(has_communication_thread());
    ASSERT_EQ(expected.size(), beside.size());
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(expected[i].equal(beside[i])) << "parameter " << i;
    const DistributedDataParallelKwargs with_hook = {.comm_hook = DDPCommunicationHookType::kBf16};
    const std::vector<at::Tensor> hooked = trained(false, with_hook);
    const std::vector<at::Tensor> hooked_beside = trained(true, with_hook);
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(hooked[i].equal(hooked_beside[i])) << "with a hook, parameter " << i;
  });
}

INSTANTIATE_TEST_SUITE_P(Jobs,
                         OverlappedSumsOnNodes,
                         ::testing::Values(std::pair(2, 1), std::pair(3, 1), std::pair(4, 2)),
                         [](const auto& tested) {
                           return std::to_string(tested.param.first) + "RanksBy" +
                                  std::to_string(tested.param.second);
                         });

TEST(OverlappedSums, LetRanksDifferInWhetherTheyOverlap) {
  test::run_ranks(2, [] {
    be_on_own_node();
    const std::vector<at::Tensor> mixed = trained(test::rank_of_this_process() == 1, {});
    const std::vector<at::Tensor> expected = trained(false, {});
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_TRUE(expected[i].equal(mixed[i])) << "parameter " << i;
  });
}

// What the thread has begun is the gradient when the backward is over, each of several that bring a part.
TEST(OverlappedSums, AreThereAtTheEndOfEachBackward) {
  test::run_ranks(2, [] {
    be_on_own_node();
    ::setenv(kVariable, "true", 1);
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.01}});
    torch::nn::Sequential net = deep_net();
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 20; ++step) {
      net->zero_grad();
      accelerator.backward(model(sample(accelerator.process_index(), step)).square().mean());
      std::vector<at::Tensor> kept;
      for (const at::Tensor& parameter : net->parameters())
        kept.push_back(parameter.grad().clone());
      accelerator.wait_for_everyone();
      const auto parameters = net->parameters();
      for (std::size_t i = 0; i < kept.size(); ++i) {
        EXPECT_TRUE(kept[i].equal(parameters[i].grad())) << "step " << step << ", parameter " << i;
        const at::Tensor all = gather(kept[i].unsqueeze(0));
        EXPECT_TRUE(all[0].equal(all[1])) << "step " << step << ", parameter " << i;
      }
    }
  });
}

TEST(OverlappedSums, ServeRanksThatRunOutOfBatches) {
  test::run_ranks(2, [] {
    be_on_own_node();
    ::setenv(kVariable, "true", 1);
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.01}});
    torch::nn::Sequential net = deep_net();
    torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(1e-2));
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    {
      const auto scope = accelerator.join_uneven_inputs(model, {.even_batches = false});
      for (int step = 0; step < 2 + 3 * accelerator.process_index(); ++step) {
        accelerator.backward(model(sample(accelerator.process_index(), step)).square().mean());
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor all = gather(parameter.detach().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

// The rank dies when its first bucket is on its way; the other one hears of it in its backward.
TEST(OverlappedSums, SayInTheBackwardThatARankHasDied) {
  const auto exits = test::run_ranks(
      2,
      [] {
        be_on_own_node();
        ::setenv(kVariable, "true", 1);
        Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.01}});
        torch::nn::Sequential net = deep_net();
        auto model = accelerator.prepare(net);
        if (test::rank_of_this_process() == 1) {
          net->parameters()[4].register_hook(
              [](const at::Tensor&) { ::kill(::getpid(), SIGKILL); });
        }
        const at::Tensor loss = model(sample(accelerator.process_index(), 0)).square().mean();
        const Error error = test::error_of([&] { accelerator.backward(loss); });
        EXPECT_EQ(error.code(), ErrorCode::kPeerLost) << error.what();
        EXPECT_THAT(error.message(), HasSubstr("averaging gradients failed on rank 0 of 2"));
      },
      {.expect_success = false});
  EXPECT_EQ(exits.at(0).status, 0) << exits.at(0).output;
  EXPECT_EQ(exits.at(1).status, 128 + SIGKILL) << exits.at(1).output;
}

// A backward that an exception ends on all ranks at one place waits for what is on its way.
TEST(OverlappedSums, OutliveABackwardThatThrows) {
  test::run_ranks(2, [] {
    be_on_own_node();
    ::setenv(kVariable, "true", 1);
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.01}});
    torch::nn::Sequential net = deep_net();
    auto model = accelerator.prepare(net);
    bool throws = true;
    net->parameters()[4].register_hook([&](const at::Tensor&) {
      if (throws) throw Error(ErrorCode::kInvalidArgument, "the program's own");
    });
    const int rank = accelerator.process_index();
    const at::Tensor failing = model(sample(rank, 0)).square().mean();
    EXPECT_THROW(accelerator.backward(failing), Error);
    throws = false;
    net->zero_grad();
    accelerator.backward(model(sample(rank, 1)).square().mean());
    for (const at::Tensor& parameter : net->parameters()) {
      const at::Tensor all = gather(parameter.grad().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

// Of the program's own, which nobody but LibTorch runs: what the thread has begun is done when the program sees the exception. The
// other rank begins late, so that it is under way when this one throws.
TEST(OverlappedSums, AreDoneWhenABackwardOfTheProgramsOwnHasThrown) {
  test::run_ranks(2, [] {
    be_on_own_node();
    ::setenv(kVariable, "true", 1);
    Accelerator accelerator({.ddp = {.bucket_cap_mb = 0.01}});
    torch::nn::Sequential net = deep_net();
    auto model = accelerator.prepare(net);
    const int rank = accelerator.process_index();
    bool throws = true;
    const std::vector<at::Tensor> parameters = net->parameters();
    parameters[4].register_hook([&](const at::Tensor&) {
      if (throws) throw Error(ErrorCode::kInvalidArgument, "the program's own");
    });
    parameters[11].register_hook([&](const at::Tensor&) {
      if (throws && rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    const at::Tensor failing = model(sample(rank, 0)).square().mean();
    EXPECT_THROW(failing.backward(), Error);
    std::vector<at::Tensor> seen;  // of the last two layers, which make the bucket that was full
    for (std::size_t i = 8; i < parameters.size(); ++i)
      seen.push_back(parameters[i].grad().clone());
    for (const at::Tensor& gradient : seen) {
      const at::Tensor all = gather(gradient.unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
    throws = false;
    net->zero_grad();
    model(sample(rank, 1)).square().mean().backward();
    for (const at::Tensor& parameter : parameters) {
      const at::Tensor all = gather(parameter.grad().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

}  // namespace
}  // namespace accel::overlapped_sums_test
