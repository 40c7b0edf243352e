// Fused kernels on shards: the bits of fused copies, whatever the number of ranks, and states that checkpoints find.

#include <memory>
#include <optional>
#include <set>
#include <vector>

#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::sharded_fused_test {
namespace {

using torch::optim::Optimizer;

// The rest of a tensor that fills no vector register is rounded otherwise by the kernels. Only copies have one.
enum class Sizes { kWholeVectors, kAny };

torch::nn::Sequential seeded_net(Sizes sizes) {
  set_seed(5);
  const std::int64_t width = sizes == Sizes::kWholeVectors ? 16 : 7;
  return torch::nn::Sequential(torch::nn::Linear(width, 2 * width),
                               torch::nn::Linear(2 * width, width));
}

struct Run {
  Sizes sizes = Sizes::kWholeVectors;
  bool is_sharded = true;
  bool is_adamw = true;
};

class Trainer {
 public:
  explicit Trainer(const Run& run)
      : accelerator_(options(run)),
        net_(seeded_net(run.sizes)),
        width_(net_->parameters()[0].size(1)) {
    std::shared_ptr<Optimizer> made;
    if (run.is_adamw) {
      made = std::make_shared<torch::optim::AdamW>(net_->parameters(),
                                                   torch::optim::AdamWOptions(0.01));
    } else {
      made = std::make_shared<torch::optim::SGD>(
          net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01));
    }
    auto [model, optimizer] = accelerator_.prepare(net_, made);
    model_.emplace(model);
    optimizer_.emplace(optimizer);
    optimizer_->use_fused_kernels();
  }

  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      const at::Tensor own =
          (at::arange(4 * width_).view({4, width_}) + 3 * step + accelerator_.process_index())
              .sin();
      accelerator_.backward(((*model_)(own)-0.5).square().mean());
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

  at::Tensor values() const {
    std::vector<at::Tensor> parts;
    for (const at::Tensor& parameter : net_->parameters())
      parts.push_back(parameter.detach().flatten());
    return at::cat(parts);
  }
  Accelerator& accelerator() { return accelerator_; }
  Optimizer& optimizer() { return optimizer_->optimizer(); }

 private:
  static AcceleratorOptions options(const Run& run) {
    AcceleratorOptions options;
    if (run.is_sharded) options.fsdp_plugin = FullyShardedDataParallelPlugin{};
    return options;
  }
  Accelerator accelerator_;
  torch::nn::Sequential net_;
  std::int64_t width_;
  std::optional<Prepared<torch::nn::Sequential>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

at::Tensor trained(const Run& run) {
  Trainer trainer(run);
  trainer.train(0, 4);
  return trainer.values();
}

class ShardedFused : public ::testing::TestWithParam<int> {};

TEST_P(ShardedFused, EqualsFusedCopiesToTheBit) {
  test::run_ranks(GetParam(), [] {
    for (const bool is_adamw : {true, false}) {
      const at::Tensor sharded = trained({.is_adamw = is_adamw});
      const at::Tensor copies = trained({.is_sharded = false, .is_adamw = is_adamw});
      EXPECT_TRUE(at::equal(sharded, copies)) << (is_adamw ? "AdamW" : "SGD");
    }
  });
}

// A few operations of each step round once more or less; values are about 0.1 to 1.
TEST_P(ShardedFused, EqualsFusedCopiesOfOddSizesButForRounding) {
  test::run_ranks(GetParam(), [] {
    const at::Tensor sharded = trained({.sizes = Sizes::kAny});
    const at::Tensor copies = trained({.sizes = Sizes::kAny, .is_sharded = false});
    EXPECT_TRUE(at::allclose(sharded, copies, 1e-4, 1e-6));
  });
}

TEST_P(ShardedFused, KeepsTheStatesOfAUnitInOneMemory) {
  test::run_ranks(GetParam(), [] {
    Trainer trainer({.sizes = Sizes::kAny});
    trainer.train(0, 1);

    std::set<const void*> memories;
    for (const auto& [key, state] : trainer.optimizer().state()) {
      const auto& adamw = dynamic_cast<const torch::optim::AdamWParamState&>(*state);
      memories.insert(adamw.exp_avg().storage().unsafeGetStorageImpl());
    }
    EXPECT_EQ(memories.size(), 1U);
    EXPECT_EQ(trainer.optimizer().state().size(),
              trainer.optimizer().param_groups()[0].params().size());
  });
}

TEST_P(ShardedFused, GoesOnFromACheckpointToTheBit) {
  const test::ScratchFolder folder;
  test::run_ranks(GetParam(), [&] {
    Trainer whole({.sizes = Sizes::kAny});
    whole.train(0, 2);
    whole.accelerator().save_state(folder.file("state"));
    whole.train(2, 4);

    Trainer resumed({.sizes = Sizes::kAny});
    resumed.accelerator().load_state(folder.file("state"));
    resumed.train(2, 4);

    EXPECT_TRUE(at::equal(resumed.values(), whole.values()));
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, ShardedFused, ::testing::Values(2, 3, 4));

}  // namespace
}  // namespace accel::sharded_fused_test
