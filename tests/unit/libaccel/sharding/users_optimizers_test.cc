// What programs do with the optimizers of a sharded model beside prepare() and step(): one that is not prepared, one of
// parameters without elements, files of torch::save().

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
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <accel/accelerator.h>
#include <accel/error.h>

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
