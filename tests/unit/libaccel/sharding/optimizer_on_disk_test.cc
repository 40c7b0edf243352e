// offload_optimizer_device nvme: the losses, weights and checkpoints of a run whose optimizer has its state in memory, to the bit.

#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/checkpoint.h>
#include <accel/error.h>
#include <accel/random.h>

#include "tests/support/error_of.h"
#include "tests/support/rank_group.h"
#include "tests/support/scratch_folder.h"
#include "tests/support/tensor_matchers.h"

namespace accel::optimizer_on_disk_test {
namespace {

namespace fs = std::filesystem;
namespace nn = torch::nn;
using ::testing::HasSubstr;

constexpr int kWidth = 200;

// The file that is mapped at an address, as the kernel names it; empty: none.
std::string file_at(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::size_t dash = 0;
    const std::uintptr_t begin = std::stoull(line, &dash, 16);
    const std::uintptr_t end = std::stoull(line.substr(dash + 1), nullptr, 16);
    const std::size_t path = line.find('/');
    if (begin <= wanted && wanted < end) return path == std::string::npos ? "" : line.substr(path);
  }
  return "";
}

struct Training {
  // folder: for the device nvme; none: in memory.
  explicit Training(int zero_stage, const std::optional<fs::path>& folder)
      : accelerator(options_for(zero_stage, folder)) {
    set_seed(7);
    net = nn::Sequential(nn::Linear(kWidth, kWidth), nn::Linear(kWidth, 3));
    auto [prepared, stepped] = accelerator.prepare(
        net,
        std::shared_ptr<torch::optim::Optimizer>(std::make_shared<torch::optim::AdamW>(
            net->parameters(), torch::optim::AdamWOptions(0.01))));
    model.emplace(prepared);
    optimizer.emplace(stepped);
    set_seed(11 + static_cast<std::uint64_t>(accelerator.process_index()));
  }

  static AcceleratorOptions options_for(int zero_stage, const std::optional<fs::path>& folder) {
    AcceleratorOptions options;
    options.cpu = true;
    options.deepspeed_plugin.emplace();
    options.deepspeed_plugin->zero_stage = zero_stage;
    if (!folder) return options;
    options.deepspeed_plugin->offload_optimizer_device = "nvme";
    options.deepspeed_plugin->offload_optimizer_nvme_path = folder->string();
    return options;
  }

  void train(int steps) {
    for (int step = 0; step < steps; ++step) {
      at::Tensor loss = (*model)(at::randn({4, kWidth})).square().mean();
      accelerator.backward(loss);
      optimizer->step();
      optimizer->zero_grad();
      results.push_back(loss.detach());
    }
  }

  // What has come out until now: losses, and parameters as they are.
  [[nodiscard]] std::vector<at::Tensor> outcome() const {
    std::vector<at::Tensor> all = results;
    for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.detach().clone());
    return all;
  }

  [[nodiscard]] at::Tensor average() const {
    auto& stepped = optimizer->optimizer();
    const at::Tensor& parameter = stepped.param_groups()[0].params()[0];
    auto& state = stepped.state().at(parameter.unsafeGetTensorImpl());
    return static_cast<torch::optim::AdamWParamState&>(*state).exp_avg();
  }

  Accelerator accelerator;
  nn::Sequential net{nullptr};
  std::optional<Prepared<nn::Sequential>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  std::vector<at::Tensor> results;
};

void expect_same(const std::vector<at::Tensor>& own, const std::vector<at::Tensor>& other) {
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i)
    EXPECT_TRUE(test::same_tensor(own[i], other[i])) << i;
}

class OptimizerOnDisk : public ::testing::TestWithParam<int> {
 protected:
  const test::ScratchFolder scratch_;
  const fs::path& folder_ = scratch_.path();
};

TEST_P(OptimizerOnDisk, TrainsAsInMemoryOnOneAndOnTwoRanks) {
  for (const int num_ranks : {1, 2}) {
    test::run_ranks(num_ranks, [&] {
      Training memory(GetParam(), std::nullopt);
      memory.train(5);
      EXPECT_EQ(file_at(memory.average().data_ptr()), "");
      const std::vector<at::Tensor> expected = memory.outcome();
      memory.accelerator.wait_for_everyone();

      Training disk(GetParam(), folder_);
      disk.train(5);
      expect_same(disk.outcome(), expected);
      EXPECT_THAT(file_at(disk.average().data_ptr()), HasSubstr(folder_.filename().string()));
      disk.accelerator.wait_for_everyone();
    });
    if (test::rank_of_this_process() >= 0) return;
    EXPECT_TRUE(fs::is_empty(folder_)) << "the file has no name";
  }
}

TEST_P(OptimizerOnDisk, GoesOnFromCheckpointsOfMemoryAndMemoryFromItsOwn) {
  const fs::path state = scratch_.path() / "state";
  test::run_ranks(2, [&] {
    Training whole(GetParam(), std::nullopt);
    whole.train(3);
    whole.accelerator.save_state(state / "of_memory");
    whole.train(2);
    const std::vector<at::Tensor> expected = whole.outcome();

    Training disk(GetParam(), folder_);
    disk.train(1);
    disk.results.assign(whole.results.begin(), whole.results.begin() + 3);
    disk.accelerator.load_state(state / "of_memory");
    disk.accelerator.save_state(state / "of_disk");
    disk.train(2);
    expect_same(disk.outcome(), expected);
    EXPECT_THAT(file_at(disk.average().data_ptr()), HasSubstr(folder_.filename().string()));

    Training memory(GetParam(), std::nullopt);
    memory.results.assign(whole.results.begin(), whole.results.begin() + 3);
    memory.accelerator.load_state(state / "of_disk");
    memory.train(2);
    expect_same(memory.outcome(), expected);
    memory.accelerator.wait_for_everyone();
  });
}

INSTANTIATE_TEST_SUITE_P(Stages, OptimizerOnDisk, ::testing::Values(0, 1, 2, 3));

TEST(OptimizerOnDiskErrors, AFolderThatIsNotThereIsRefusedByPrepare) {
  const test::ScratchFolder scratch;
  const fs::path missing = scratch.path() / "missing";
  const Error error = test::error_of([&] { const Training training(2, missing); });
  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr(missing.string()));
  EXPECT_THAT(error.remedy(), HasSubstr("offload_optimizer_nvme_path"));
}

}  // namespace
}  // namespace accel::optimizer_on_disk_test
