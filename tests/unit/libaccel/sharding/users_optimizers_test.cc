// What programs do with the optimizers of a sharded model beside prepare() and step(): one that is not prepared, one of
// parameters without elements, files of torch::save().

#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <accel/accelerator.h>
#include <accel/error.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::users_optimizers_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

AcceleratorOptions full_shard() {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{}};
}

// ---- parameters without elements: they are in no unit, so an optimizer of them writes none

struct EmptyImpl : torch::nn::Module {
  EmptyImpl() { nothing = register_parameter("nothing", at::ones({0, 3})); }
  at::Tensor forward(const at::Tensor& input) { return input.matmul(nothing.t()).sum(); }
  at::Tensor nothing;
};

struct HalfEmptyImpl : EmptyImpl {
  HalfEmptyImpl() { weight = register_parameter("weight", at::full({3}, 0.3)); }
  at::Tensor forward(const at::Tensor& input) {
    return EmptyImpl::forward(input) + (input * weight).sum();
  }
  at::Tensor weight;
};

TEST(UsersOptimizers, OneOfNothingButEmptyParametersStepsAndIsSaved) {
  const test::ScratchFolder folder;
  test::run_ranks(2, [&] {
    Accelerator accelerator(full_shard());
    const auto net = std::make_shared<EmptyImpl>();
    torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.1));
    auto [model, optimizer] = accelerator.prepare(net, adam);
    for (int step = 0; step < 2; ++step) {
      accelerator.backward(model(at::ones({2, 3})));
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.save_state(folder.file("checkpoint"));
    accelerator.load_state(folder.file("checkpoint"));
    EXPECT_EQ(net->nothing.sizes(), (std::vector<std::int64_t>{0, 3}));
  });
}

// A step on a unit counts the versions of all its parameters up, and writes its masters.
TEST(UsersOptimizers, OneOfEmptyParametersAloneWritesNothingOfOthers) {
  test::run_ranks(2, [] {
    Accelerator accelerator(full_shard());
    const auto net = std::make_shared<HalfEmptyImpl>();
    torch::optim::SGD of_nothing(std::vector<at::Tensor>{net->nothing}, 0.1);
    auto [model, optimizer] = accelerator.prepare(net, of_nothing);
    const auto version = net->weight._version();
    accelerator.backward(model(at::ones({2, 3})));
    optimizer.step();
    EXPECT_EQ(net->weight._version(), version);
    EXPECT_TRUE(net->weight.equal(at::full({3}, 0.3)));
  });
}

// ---- step() of the optimizer itself, not of what prepare() returned

struct Way {
  const char* name;
  AcceleratorOptions options;
  bool is_over_nodes = false;
};

AcceleratorOptions sharded_as(ShardingStrategy strategy, const char* policy = nullptr) {
  AcceleratorOptions options = full_shard();
  options.fsdp_plugin->sharding_strategy = strategy;
  if (policy != nullptr) options.fsdp_plugin->mixed_precision_policy = policy;
  return options;
}

AcceleratorOptions zero(int stage) {
  return {.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = stage}};
}

template <typename Optimizer, typename Options>
std::shared_ptr<torch::optim::Optimizer> made(const std::vector<at::Tensor>& parameters) {
  return std::make_shared<Optimizer>(parameters, Options(0.1));
}

enum class Before { kBackward, kOwnBackward, kPreparedStep };

// The message and remedy; empty: it has stepped.
std::string refusal_of_step(torch::optim::Optimizer& optimizer) {
  try {
    optimizer.step();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.message() + " | " + error.remedy();
  }
  return "";
}

TEST(UsersOptimizers, TheirOwnStepIsRefusedWithTheLineToWriteWhereverTheModelIsDivided) {
  using namespace torch::optim;  // NOLINT: the list below
  const std::vector<Way> ways = {
      {"FULL_SHARD", sharded_as(ShardingStrategy::kFullShard)},
      {"SHARD_GRAD_OP", sharded_as(ShardingStrategy::kShardGradOp)},
      {"masters", sharded_as(ShardingStrategy::kFullShard, "bf16")},
      {"ZeRO-1", zero(1)},
      {"ZeRO-2", zero(2)},
      {"ZeRO-3", zero(3)},
      {"FULL_SHARD over nodes", sharded_as(ShardingStrategy::kFullShard), true},
      {"SHARD_GRAD_OP over nodes", sharded_as(ShardingStrategy::kShardGradOp), true},
      {"ZeRO-1 over nodes", zero(1), true},
  };
  const auto kinds = {&made<SGD, SGDOptions>,
                      &made<Adam, AdamOptions>,
                      &made<AdamW, AdamWOptions>,
                      &made<RMSprop, RMSpropOptions>,
                      &made<Adagrad, AdagradOptions>};
  for (const Way& way : ways) {
    test::run_ranks(2, [&] {
      if (way.is_over_nodes) {
        const std::string node = "node" + std::to_string(test::rank_of_this_process());
        ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
      }
      Accelerator accelerator(way.options);
      for (const auto make : kinds) {
        for (const Before before_it :
             {Before::kBackward, Before::kOwnBackward, Before::kPreparedStep}) {
          torch::nn::Linear net(8, 8);
          const std::shared_ptr<torch::optim::Optimizer> own = make(net->parameters());
          auto [model, optimizer] = accelerator.prepare(net, own);
          const at::Tensor loss = model(at::ones({1, 8})).sum();
          if (before_it == Before::kOwnBackward) {
            loss.backward();
          } else {
            accelerator.backward(loss);
          }
          if (before_it == Before::kPreparedStep) optimizer.step();
          EXPECT_THAT(refusal_of_step(*own), HasSubstr("write optimizer.step()")) << way.name;
        }
      }
      accelerator.wait_for_everyone();
    });
  }
}

// Where every rank has the whole model and all gradients, it is as good as the prepared one's.
TEST(UsersOptimizers, TheirOwnStepWorksOnCopies) {
  test::run_ranks(2, [] {
    for (const AcceleratorOptions& options :
         {AcceleratorOptions{}, sharded_as(ShardingStrategy::kNoShard)}) {
      Accelerator accelerator(options);
      torch::nn::Linear net(8, 8);
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      const at::Tensor before = net->bias.clone();
      accelerator.backward(model(at::ones({1, 8}) * (1 + accelerator.process_index())).sum());
      EXPECT_EQ(refusal_of_step(sgd), "");
      EXPECT_FALSE(net->bias.equal(before));
      const at::Tensor all = accelerator.gather(net->weight.detach().unsqueeze(0));
      EXPECT_TRUE(all[0].equal(all[1]));
    }
  });
}

// ---- not prepared

// What two backwards say.
std::string said_by_training(bool is_prepared) {
  Accelerator accelerator(full_shard());
  torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::Linear(8, 8));
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto model = accelerator.prepare(net);
  if (is_prepared) std::ignore = accelerator.prepare(sgd);
  ::testing::internal::CaptureStderr();
  for (int step = 0; step < 2; ++step) accelerator.backward(model(at::ones({2, 8})).sum());
  return ::testing::internal::GetCapturedStderr();
}

TEST(UsersOptimizers, AFileOfTorchSaveIsRefusedWithTheCallToUse) {
  for (const auto& plugin : {FullyShardedDataParallelPlugin{},
                             FullyShardedDataParallelPlugin{.mixed_precision_policy = "bf16"}}) {
    test::run_ranks(2, [&] {
      AcceleratorOptions options;
      options.fsdp_plugin = plugin;
      Accelerator accelerator(options);
      torch::nn::Linear net(8, 8);
      torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(0.1));
      auto [model, optimizer] = accelerator.prepare(net, adam);
      const auto step = [&, &model = model, &optimizer = optimizer] {
        accelerator.backward(model(at::ones({1, 8})).sum());
        optimizer.step();
        optimizer.zero_grad();
      };
      step();
      std::stringstream file;
      torch::save(adam, file);
      step();
      torch::load(adam, file);
      try {
        step();
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
        EXPECT_THAT(error.message(), HasSubstr("torch::load()"));
        EXPECT_THAT(error.remedy(), HasSubstr("use save_state() and load_state()"));
      }
      adam.state().clear();
      step();
      step();
      accelerator.wait_for_everyone();
    });
  }
}

TEST(UsersOptimizers, OneThatIsNotPreparedTrainsNothingAndIsToldOnce) {
  test::run_ranks(2, [] {
    const std::string warning =
        "no optimizer that was prepared has the parameters of the model of 0.weight";
    EXPECT_THAT(said_by_training(true), Not(HasSubstr(warning)));
    const std::string said = said_by_training(false);
    if (test::rank_of_this_process() != 0) return;
    EXPECT_THAT(said, HasSubstr(warning));
    EXPECT_EQ(said.find(warning), said.rfind(warning));
  });
}

}  // namespace
}  // namespace accel::users_optimizers_test
