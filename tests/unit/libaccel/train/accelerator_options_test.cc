// What the option structs of an Accelerator change.

#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <string>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/error.h>

#include "libaccel/engine/process/process_group.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/working_folder.h"

namespace accel::accelerator_options_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

struct Numbers {
  std::size_t count = 6;
  [[nodiscard]] at::Tensor get(std::size_t index) const {
    return at::full({}, static_cast<std::int64_t>(index), at::kLong);
  }
  [[nodiscard]] std::size_t size() const { return count; }
};

template <typename Loader>
std::vector<std::int64_t> numbers_of(Loader& loader) {
  std::vector<std::int64_t> numbers;
  for (const at::Tensor& batch : loader) {
    for (std::int64_t i = 0; i < batch.size(0); ++i) {
      numbers.push_back(batch[i].template item<std::int64_t>());
    }
  }
  return numbers;
}

class Options : public ::testing::Test {
 protected:
  void TearDown() override { PartialState::reset(); }

  torch::nn::Linear net_{2, 2};
};

// ---- AutocastKwargs

TEST_F(Options, AutocastCanBeSwitchedOffForTheRunAndForAScope) {
  Accelerator accelerator({.mixed_precision = "bf16"});
  const auto type_in = [&](const AutocastKwargs& options) {
    const Autocast scope = accelerator.autocast(options);
    return net_(at::ones({1, 2})).scalar_type();
  };
  EXPECT_EQ(type_in({}), at::kBFloat16);
  EXPECT_EQ(type_in({.enabled = false}), at::kFloat);
  PartialState::reset();

  Accelerator off({.mixed_precision = "bf16", .autocast = {.enabled = false}});
  const Autocast scope = off.autocast();

  EXPECT_EQ(net_(at::ones({1, 2})).scalar_type(), at::kFloat);
}

TEST_F(Options, AutocastWithoutItsCacheSeesAWeightThatChangedInTheScope) {
  Accelerator accelerator({.mixed_precision = "bf16", .autocast = {.cache_enabled = false}});
  const auto sum = [&] { return net_(at::ones({1, 2})).sum().item<float>(); };
  const at::NoGradGuard no_grad;
  net_->bias.fill_(0.0);
  net_->weight.fill_(1.0);
  net_->weight.set_requires_grad(true);

  const Autocast scope = accelerator.autocast();
  const float before = sum();
  net_->weight.fill_(2.0);

  EXPECT_EQ(before, 4.0F);
  EXPECT_EQ(sum(), 8.0F);
}

// ---- GradScalerKwargs

TEST_F(Options, GradScalerTakesItsScaleAndItsGrowth) {
  Accelerator accelerator(
      {.mixed_precision = "fp16",
       .grad_scaler = {.init_scale = 8.0, .growth_factor = 4.0, .growth_interval = 1}});
  torch::optim::SGD sgd(net_->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net_, sgd);
  const double before = accelerator.scaler()->get_scale();

  accelerator.backward(model(at::ones({1, 2})).sum());
  optimizer.step();

  EXPECT_EQ(before, 8.0);
  EXPECT_EQ(accelerator.scaler()->get_scale(), 32.0);
}

TEST_F(Options, GradScalerBacksOffByItsFactorAfterAnOverflow) {
  Accelerator accelerator(
      {.mixed_precision = "fp16", .grad_scaler = {.init_scale = 8.0, .backoff_factor = 0.25}});
  torch::optim::SGD sgd(net_->parameters(), torch::optim::SGDOptions(0.1));
  auto [model, optimizer] = accelerator.prepare(net_, sgd);

  accelerator.backward(model(at::ones({1, 2})).sum());
  net_->bias.mutable_grad().fill_(std::numeric_limits<float>::infinity());
  optimizer.step();

  EXPECT_TRUE(accelerator.optimizer_step_was_skipped());
  EXPECT_EQ(accelerator.scaler()->get_scale(), 2.0);
}

TEST_F(Options, GradScalerCanBeLeftOut) {
  const Accelerator accelerator({.mixed_precision = "fp16", .grad_scaler = {.enabled = false}});

  EXPECT_EQ(accelerator.scaler(), nullptr);
}

// ---- ProjectConfiguration

TEST_F(Options, ProjectNamesNumbersAndLimitsItsCheckpoints) {
  const test::ScratchFolder scratch;
  AcceleratorOptions options;
  options.project_config.project_dir = scratch.path().string();
  options.project_config.logging_dir = scratch.file("logs");
  options.project_config.automatic_checkpoint_naming = true;
  options.project_config.total_limit = 2;
  options.project_config.iteration = 7;
  Accelerator accelerator(options);
  for (int i = 0; i < 3; ++i) accelerator.save_state();

  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(scratch.path() / "checkpoints")) {
    names.push_back(entry.path().filename());
  }
  EXPECT_THAT(names, UnorderedElementsAre("checkpoint_8", "checkpoint_9"));
  EXPECT_EQ(accelerator.save_iteration(), 10);
  EXPECT_EQ(accelerator.logging_dir(), scratch.file("logs"));
  EXPECT_EQ(accelerator.project_configuration().total_limit, 2);
}

TEST_F(Options, ProjectWithoutAutomaticNamesSavesWhereItIsTold) {
  const test::ScratchFolder scratch;
  Accelerator accelerator({.project_config = {.project_dir = scratch.path().string()}});

  const CheckpointInfo saved = accelerator.save_state(scratch.path() / "mine");

  EXPECT_EQ(saved.folder, scratch.path() / "mine");
  EXPECT_EQ(accelerator.load_state(saved.folder).folder, saved.folder);
}

TEST_F(Options, ProjectThatKeepsNoCheckpointIsRefusedAtOnce) {
  try {
    const Accelerator accelerator({.project_config = {.total_limit = 0}});
    FAIL() << "an hour of training before its first save fails";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("total_limit is 0"));
  }
}

TEST_F(Options, ProjectStaysWhereItWasWhenTheWorkingFolderChanges) {
  const test::ScratchFolder scratch;
  const test::ScratchFolder elsewhere;
  const test::WorkingFolder working(scratch.path());
  Accelerator accelerator({.project_dir = "project"});

  fs::current_path(elsewhere.path());
  const CheckpointInfo saved = accelerator.save_state();

  EXPECT_TRUE(saved.folder.is_absolute());
  EXPECT_TRUE(fs::exists(scratch.path() / "project/checkpoints/checkpoint_0"));
  EXPECT_TRUE(fs::is_empty(elsewhere.path()));
}

// ---- DataLoaderConfiguration

TEST_F(Options, ASeedableSamplerRepeatsItsOrderForItsSeed) {
  const auto order_of = [](std::int64_t seed) {
    Accelerator accelerator(
        {.dataloader_config = {.use_seedable_sampler = true, .data_seed = seed}});
    auto loader = accelerator.prepare(DataLoader(Numbers{32}, {.batch_size = 2, .shuffle = true}));
    return numbers_of(loader);
  };

  EXPECT_EQ(order_of(42), order_of(42));
  EXPECT_NE(order_of(42), order_of(43));
}

TEST(OptionsOnRanks, SplitBatchesDividesTheBatchOfTheLoader) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.dataloader_config = {.split_batches = true}});
    auto loader = accelerator.prepare(DataLoader(Numbers{4}, {.batch_size = 2}));

    EXPECT_TRUE(accelerator.gather(numbers_of(loader).size() == 2 ? at::ones({1}) : at::zeros({1}))
                    .equal(at::ones({2})));
    EXPECT_EQ(loader.total_batch_size(), 2);
  });
}

TEST(OptionsOnRanks, UnevenBatchesRepeatNothing) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.dataloader_config = {.even_batches = false}});
    auto loader = accelerator.prepare(DataLoader(Numbers{3}, {.batch_size = 1}));

    if (accelerator.is_main_process()) {
      EXPECT_THAT(numbers_of(loader), ElementsAre(0, 2));
    } else {
      EXPECT_THAT(numbers_of(loader), ElementsAre(1));
    }
  });
}

TEST(OptionsOnRanks, DispatchedBatchesComeFromRank0) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.dataloader_config = {.dispatch_batches = true}});
    // Only rank 0's numbers reach anybody.
    struct Own {
      std::int64_t first;
      [[nodiscard]] at::Tensor get(std::size_t index) const {
        return at::full({}, first + static_cast<std::int64_t>(index), at::kLong);
      }
      [[nodiscard]] std::size_t size() const { return 4; }
    };
    auto loader = accelerator.prepare(
        DataLoader(Own{accelerator.is_main_process() ? 0 : 100}, {.batch_size = 2}));

    if (accelerator.is_main_process()) {
      EXPECT_THAT(numbers_of(loader), ElementsAre(0, 1));
    } else {
      EXPECT_THAT(numbers_of(loader), ElementsAre(2, 3));
    }
  });
}

// ---- DistributedDataParallelKwargs

TEST(OptionsOnRanks, BuffersStayApartWithoutBroadcasts) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.ddp = {.broadcast_buffers = false}});
    torch::nn::BatchNorm1d norm(2);
    auto model = accelerator.prepare(norm);

    for (int step = 0; step < 2; ++step) {
      const at::Tensor own = at::ones({4, 2}) * (1.0 + accelerator.process_index());
      accelerator.backward(model(own).sum());
    }

    const at::Tensor means = accelerator.gather(norm->running_mean.unsqueeze(0));
    EXPECT_FALSE(means[0].equal(means[1]));
  });
}

TEST(OptionsOnRanks, GradientsOfSmallBucketsAndOfNoViewsAreTheSame) {
  test::run_ranks(2, [] {
    const auto gradient_with = [](const DistributedDataParallelKwargs& ddp) {
      Accelerator accelerator({.ddp = ddp});
      torch::nn::Linear net(64, 64);
      {
        const at::NoGradGuard no_grad;
        net->weight.fill_(0.5);
        net->bias.fill_(0.0);
      }
      auto model = accelerator.prepare(net);
      for (int step = 0; step < 2; ++step) {
        net->zero_grad();
        const at::Tensor own = at::ones({2, 64}) * (1.0 + accelerator.process_index());
        accelerator.backward(model(own).square().mean());
      }
      return net->weight.grad().clone();
    };

    const at::Tensor usual = gradient_with({.gradient_as_bucket_view = false});

    EXPECT_TRUE(
        gradient_with({.bucket_cap_mb = 0.001, .gradient_as_bucket_view = false}).equal(usual));
  });
}

TEST(OptionsOnRanks, ABucketWithoutRoomIsRefused) {
  test::run_ranks(2, [] {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    for (const double cap : {0.0, -1.0, std::nan(""), kInfinity}) {
      Accelerator accelerator({.ddp = {.bucket_cap_mb = cap}});
      torch::nn::Linear net(2, 1);

      EXPECT_THROW(accelerator.prepare(net), Error) << cap;
    }
  });
}

// ---- InitProcessGroupKwargs

TEST(OptionsOnRanks, ACollectiveGivesUpAfterItsTimeout) {
  test::run_ranks(2, [] {
    Accelerator accelerator({.init_process_group = {.timeout = std::chrono::milliseconds(300)}});
    const auto store = PartialState::process_group()->store();
    if (accelerator.process_index() == 1) return store->wait({"given up"});

    try {
      accelerator.wait_for_everyone();
      FAIL() << "a barrier passed although rank 1 never came";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(error.remedy(), HasSubstr("InitProcessGroupKwargs.timeout"));
    }
    store->set("given up", std::vector<std::uint8_t>{1});
  });
}

TEST(OptionsOnRanks, ABackendThatIsNotThereIsNamed) {
  test::run_ranks(2, [] {
    try {
      const Accelerator accelerator({.init_process_group = {.backend = "nccl"}});
      FAIL() << "joined a group of nccl";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
      EXPECT_THAT(error.message(), HasSubstr("'nccl'"));
      EXPECT_THAT(error.remedy(), HasSubstr("gloo"));
    }
  });
}

}  // namespace
}  // namespace accel::accelerator_options_test
