// Programs that write to parameters of which each rank has a copy: SHARD_GRAD_OP over nodes, with and without masters.

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/random.h>
#include <accel/state_view.h>

#include "libaccel/engine/homes/unsynced_writes.h"
#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::written_copies_test {
namespace {

using test::error_of;

using ::testing::HasSubstr;

constexpr std::int64_t kWidth = 8;

// A model that has trained for a step, on two nodes of a rank each.
class Trainer {
 public:
  explicit Trainer(const std::string& policy) : accelerator_(options(policy)), net_(seeded()) {
    auto [model, optimizer] = accelerator_.prepare(
        net_,
        std::make_shared<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(0.1)));
    model_.emplace(model);
    optimizer_.emplace(optimizer);
    step();
  }

  void step() {
    const at::Tensor input = at::arange(2 * kWidth).view({2, kWidth}).sin();
    accelerator_.backward((*model_)(input).to(at::kFloat).square().mean());
    optimizer_->step();
    optimizer_->zero_grad();
  }
  void step_without_change() {
    optimizer_->optimizer().param_groups()[0].options().set_lr(0);
    step();
  }
  // Of all ranks in full precision; on rank 0 alone.
  std::map<std::string, at::Tensor> state() {
    std::map<std::string, at::Tensor> state;
    for (const auto& [name, tensor] : accelerator_.get_state_dict(*model_).tensors)
      state[name] = tensor.values;
    return state;
  }
  // What this rank has of a parameter, from its first element on.
  at::Tensor part(const std::string& name) {
    const StateView view = accelerator_.get_state_dict(*model_, StateDictType::kSharded);
    const auto found = view.tensors.find(name);
    return found == view.tensors.end() ? at::Tensor() : found->second.values;
  }
  [[nodiscard]] at::Tensor weight(int layer) const {
    return net_->ptr<torch::nn::LinearImpl>(static_cast<std::size_t>(layer))->weight;
  }
  [[nodiscard]] at::Tensor bias(int layer) const {
    return net_->ptr<torch::nn::LinearImpl>(static_cast<std::size_t>(layer))->bias;
  }
  Accelerator& accelerator() { return accelerator_; }

 private:
  static AcceleratorOptions options(const std::string& policy) {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kShardGradOp;
    if (!policy.empty()) options.fsdp_plugin->mixed_precision_policy = policy;
    return options;
  }
  static torch::nn::Sequential seeded() {
    set_seed(4);
    return torch::nn::Sequential(torch::nn::Linear(kWidth, kWidth),
                                 torch::nn::Linear(kWidth, kWidth));
  }

  Accelerator accelerator_;
  torch::nn::Sequential net_;
  std::optional<Prepared<torch::nn::Sequential>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

// By the policy of mixed precision; empty: none.
class WrittenCopies : public ::testing::TestWithParam<const char*> {
 protected:
  static void run(const std::function<void(Trainer&)>& body, const char* debug_mode = "0") {
    test::run_ranks(2, [&] {
      const std::string node = "node" + std::to_string(test::rank_of_this_process());
      ::setenv(shm::kTestNodeVariable, node.c_str(), 1);
      ::setenv("ACCELERATE_DEBUG_MODE", debug_mode, 1);
      Trainer trainer(GetParam());
      body(trainer);
    });
  }
};

TEST_P(WrittenCopies, KeepWhatAllRanksWriteAndTheRestAsExactAsItWas) {
  run([](Trainer& trainer) {
    auto expected = trainer.state();
    const at::NoGradGuard no_grad;
    trainer.weight(0)[0].fill_(0.25);
    trainer.bias(0).data().fill_(0.5);
    std::memset(trainer.bias(1).data_ptr(), 0, trainer.bias(1).nbytes());

    const bool is_main = trainer.accelerator().is_main_process();
    const at::Tensor part = trainer.part("0.weight");
    if (is_main) {
      EXPECT_TRUE(part.narrow(0, 0, kWidth).eq(0.25).all().item<bool>()) << part;
    }
    const auto written = trainer.state();
    {
      const at::AutoGradMode grad(true);
      trainer.step_without_change();
    }
    const auto stepped = trainer.state();

    EXPECT_TRUE(trainer.weight(0)[0].eq(0.25).all().item<bool>());
    if (!is_main) return;
    expected.at("0.weight")[0].fill_(0.25);
    expected.at("0.bias").fill_(0.5);
    expected.at("1.bias").zero_();
    for (const auto& [name, values] : expected) {
      EXPECT_EQ(values.scalar_type(), at::kFloat);
      EXPECT_TRUE(written.at(name).equal(values)) << name;
      EXPECT_TRUE(stepped.at(name).equal(values)) << name;
    }
  });
}

TEST_P(WrittenCopies, NameOnAllRanksWhatOneAloneHasWritten) {
  const test::ScratchFolder folder;
  run([&](Trainer& trainer) {
    Accelerator& accelerator = trainer.accelerator();
    accelerator.save_state(folder.file("state"));
    const auto write_on = [&](int rank) {
      const at::NoGradGuard no_grad;
      if (accelerator.process_index() == rank) trainer.weight(1).mul_(0.5);
    };
    write_on(1);
    const Error error = error_of([&] { trainer.step(); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(),
                HasSubstr("the parameter 1.weight was written to on rank 1 and not on rank 0"));
    EXPECT_THAT(error.remedy(), HasSubstr("on every rank"));
    EXPECT_THAT(error_of([&] { accelerator.save_state(folder.file("mixed")); }).message(),
                HasSubstr("1.weight"));

    write_on(0);
    trainer.step();

    write_on(1);
    accelerator.load_state(folder.file("state"));
    trainer.step();
  });
}

TEST_P(WrittenCopies, AreComparedByTheirValuesInDebugMode) {
  run(
      [](Trainer& trainer) {
        trainer.step();
        const bool is_writer = trainer.accelerator().process_index() == 1;
        if (is_writer) trainer.weight(1).data().mul_(0.5);
        EXPECT_THAT(error_of([&] { trainer.step(); }).message(),
                    HasSubstr("the parameter 1.weight was written to on rank 1 and not on rank 0"));

        if (!is_writer) trainer.weight(1).data().mul_(0.5);
        trainer.step();
        std::memset(trainer.bias(0).data_ptr(), 0, trainer.bias(0).nbytes());
        trainer.step();
        trainer.step();
      },
      "1");
}

INSTANTIATE_TEST_SUITE_P(Policies,
                         WrittenCopies,
                         ::testing::Values("", "bf16"),
                         [](const auto& info) {
                           return info.param[0] == '\0' ? "WithoutAPolicy" : info.param;
                         });

TEST(UnsyncedWrite, IsTheFirstThatNotAllRanksHaveDone) {
  using sharding::first_unsynced_write;
  using sharding::UnsyncedWrite;
  EXPECT_EQ(first_unsynced_write({}, {}), std::nullopt);
  const std::vector<int> nobody_all_some_one{-1, 2, 2, 0};
  const std::vector<int> all_nobody_some_most{2, -1, 1, 2};
  EXPECT_EQ(first_unsynced_write(nobody_all_some_one, all_nobody_some_most),
            (UnsyncedWrite{.parameter = 2, .writer = 2, .other = 1}));
}

}  // namespace
}  // namespace accel::written_copies_test
