// One model or one optimizer in the files of FSDP, and folders that are refused. Accelerate itself takes part in
// tests/peer/fsdp_checkpoints.py.

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/error.h>
#include <accel/fsdp_checkpoint.h>
#include <accel/random.h>
#include <accel/safetensors_file.h>

#include "tests/support/error_of.h"
#include "tests/support/names_in.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"

namespace accel::fsdp_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;

AcceleratorOptions fsdp_options() {
  AcceleratorOptions options;
  options.fsdp_plugin.emplace().sharding_strategy = ShardingStrategy::kFullShard;
  return options;
}

// Every rank sees the same batch: any power of two of ranks has the bits of one process.
struct SmallRun {
  explicit SmallRun(const AcceleratorOptions& options) : accelerator(options) {
    set_seed(5);
    net = torch::nn::Linear(7, 9);
    adam = std::make_shared<torch::optim::AdamW>(net->parameters(),
                                                 torch::optim::AdamWOptions(0.01).amsgrad(true));
    auto [prepared, stepped] = accelerator.prepare(net, adam);
    model.emplace(prepared);
    optimizer.emplace(stepped);
  }

  void train(int first, int steps) {
    for (int step = first; step < first + steps; ++step) {
      const at::Tensor input = (at::arange(28, at::kFloat).view({4, 7}) + step) / 28.0;
      accelerator.backward((*model)(input).square().mean());
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  [[nodiscard]] at::Tensor parameters() const {
    return at::cat({net->weight.detach().flatten(), net->bias.detach().flatten()});
  }
  [[nodiscard]] at::Tensor averages() const {
    const StateView view =
        accelerator.get_optimizer_state_dict(*optimizer, StateDictType::kSharded);
    return view.tensors.at("weight.exp_avg").values.clone();
  }

  Accelerator accelerator;
  torch::nn::Linear net{nullptr};
  std::shared_ptr<torch::optim::AdamW> adam;
  std::optional<Prepared<torch::nn::Linear>> model;
  std::optional<AcceleratedOptimizer> optimizer;
};

TEST(FsdpCheckpoint, OneObjectIsSavedAndLoadedAlone) {
  const test::ScratchFolder scratch;
  const fs::path folder = scratch.path() / "saved";
  test::run_ranks(2, [&] {
    SmallRun run(fsdp_options());
    run.train(0, 2);
    const at::Tensor saved = run.parameters().clone();
    save_fsdp_model(run.accelerator, *run.model, folder);
    save_fsdp_optimizer(run.accelerator, *run.optimizer, folder, 1);
    run.train(2, 2);
    const at::Tensor trained = run.parameters().clone();
    const at::Tensor averages = run.averages();

    load_fsdp_model(run.accelerator, *run.model, folder);
    EXPECT_TRUE(run.parameters().equal(saved));
    EXPECT_TRUE(run.averages().equal(averages)) << "the optimizer is not what was loaded";
    load_fsdp_optimizer(run.accelerator, *run.optimizer, folder, 1);
    EXPECT_TRUE(run.parameters().equal(saved));
    run.train(2, 2);
    EXPECT_TRUE(run.parameters().equal(trained));
  });
  EXPECT_THAT(test::names_in(folder), ElementsAre("optimizer_1.bin", "pytorch_model_fsdp.bin"));
}

TEST(FsdpCheckpoint, CopiesAndOtherNumbersOfRanksGoOnFromIt) {
  const test::ScratchFolder scratch;
  const fs::path folder = scratch.path() / "saved";
  const fs::path expected = scratch.path() / "expected.safetensors";
  test::run_ranks(2, [&] {
    SmallRun run(fsdp_options());
    run.train(0, 2);
    run.accelerator.save_state(folder, {.format = CheckpointFormat::kAccelerate});
    run.train(2, 2);
    if (run.accelerator.is_main_process())
      safetensors::save_file({{"parameters", run.parameters()}}, expected);
  });
  EXPECT_THAT(test::names_in(folder), IsSupersetOf({"optimizer.bin", "pytorch_model_fsdp.bin"}));
  const auto go_on = [&](const AcceleratorOptions& options) {
    SmallRun run(options);
    run.train(0, 1);  // another state, which loading replaces
    load_fsdp_model(run.accelerator, *run.model, folder);
    load_fsdp_optimizer(run.accelerator, *run.optimizer, folder);
    run.train(2, 2);
    EXPECT_TRUE(safetensors::load_file(expected).at("parameters").equal(run.parameters()));
  };
  test::run_ranks(4, [&] { go_on(fsdp_options()); });
  test::run_ranks(2, [&] { go_on({}); });
}

TEST(FsdpCheckpoint, ItsFilesComeBeforeOthersOfTheFolder) {
  const test::ScratchFolder scratch;
  const fs::path models = scratch.path() / "models";
  const fs::path checkpoint = scratch.path() / "checkpoint";
  test::run_ranks(2, [&] {
    SmallRun run(fsdp_options());
    run.accelerator.save_model(*run.model, models);
    run.accelerator.save_state(checkpoint);
    run.train(0, 2);
    const at::Tensor saved = run.parameters().clone();
    for (const fs::path& folder : {models, checkpoint})
      save_fsdp_model(run.accelerator, *run.model, folder);
    for (const fs::path& folder : {models, checkpoint}) {
      run.train(2, 1);
      load_fsdp_model(run.accelerator, *run.model, folder);
      EXPECT_TRUE(run.parameters().equal(saved)) << folder;
    }
  });
}

TEST(FsdpCheckpoint, WhatWasNotPreparedIsRefused) {
  const test::ScratchFolder scratch;
  test::run_ranks(2, [&] {
    SmallRun run(fsdp_options());
    run.train(0, 1);
    save_fsdp_model(run.accelerator, *run.model, scratch.path() / "saved");
    Accelerator other;
    const Error error =
        error_of([&] { load_fsdp_model(other, *run.model, scratch.path() / "saved"); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.message(), HasSubstr("the model was not prepared by this Accelerator"));
  });
}

void touch(const fs::path& file) {
  fs::create_directories(file.parent_path());
  std::ofstream(file) << "x";
}

// load_state() of a folder of Accelerate with this file is refused with these words.
void expect_refusal(const char* file, const ::testing::Matcher<std::string>& words) {
  const test::ScratchFolder scratch;
  touch(scratch.path() / "random_states_0.pkl");
  touch(scratch.path() / file);
  test::run_ranks(2, [&] {
    SmallRun run(fsdp_options());
    const Error error = error_of([&] { run.accelerator.load_state(scratch.path()); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(std::string(error.what()), words);
  });
}

TEST(FsdpCheckpoint, FoldersOfDeepSpeedAreRefusedByName) {
  const auto words = AllOf(HasSubstr("was saved with DeepSpeed"), HasSubstr("zero_to_fp32.py"));
  expect_refusal("pytorch_model/mp_rank_00_model_states.pt", words);
  expect_refusal("pytorch_model/zero_pp_rank_0_mp_rank_00_model_states.pt", words);
}

TEST(FsdpCheckpoint, AFileForEachRankIsRefusedByName) {
  const auto words = HasSubstr("has a file of weights for each rank");
  expect_refusal("pytorch_model_fsdp_rank0.bin", words);
  expect_refusal("pytorch_model_fsdp_0_rank0.bin", words);
}

}  // namespace
}  // namespace accel::fsdp_checkpoint_test
