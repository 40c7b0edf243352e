// OffloadedTraining: a small model whose optimizer has its state in memory or on disk, on each rank.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "tests/support/tensor_matchers.h"

namespace accel::test {

// Width and depth of the model: linear layers without bias, and a last one of 3 outputs.
struct OffloadedModel {
  std::int64_t width = 200;
  int depth = 1;
};

inline torch::nn::Sequential offloaded_net(const OffloadedModel& model) {
  set_seed(7);
  torch::nn::Sequential net;
  for (int layer = 0; layer < model.depth; ++layer)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(model.width, model.width)));
  net->push_back(torch::nn::Linear(model.width, 3));
  return net;
}

// ZeRO. folder: of the optimizer's state; none: in memory.
inline AcceleratorOptions zero_options(int stage,
                                       const std::optional<std::filesystem::path>& folder) {
  AcceleratorOptions options;
  options.cpu = true;
  options.deepspeed_plugin.emplace();
  options.deepspeed_plugin->zero_stage = stage;
  if (!folder) return options;
  options.deepspeed_plugin->offload_optimizer_device = "nvme";
  options.deepspeed_plugin->offload_optimizer_nvme_path = folder->string();
  return options;
}

// The same with parameters there. Of stage 3.
inline AcceleratorOptions with_parameters_in(const std::filesystem::path& folder,
                                             AcceleratorOptions options) {
  options.deepspeed_plugin->offload_param_device = "nvme";
  options.deepspeed_plugin->offload_param_nvme_path = folder.string();
  return options;
}

class OffloadedTraining {
 public:
  explicit OffloadedTraining(AcceleratorOptions options, const OffloadedModel& size = {})
      : accelerator(std::move(options)), net(offloaded_net(size)), width_(size.width) {
    auto [prepared, stepped] = accelerator.prepare(
        net,
        std::shared_ptr<torch::optim::Optimizer>(std::make_shared<torch::optim::AdamW>(
            net->parameters(), torch::optim::AdamWOptions(0.01))));
    model.emplace(prepared);
    optimizer.emplace(stepped);
    set_seed(11 + static_cast<std::uint64_t>(accelerator.process_index()));
  }

  // before_step: called each time when there are gradients.
  void train(int batches, const std::function<void()>& before_step = {}) {
    for (int batch = 0; batch < batches; ++batch) {
      const auto accumulating = accelerator.accumulate(*model);
      at::Tensor loss = (*model)(at::randn({4, width_})).square().mean();
      accelerator.backward(loss);
      if (before_step) before_step();
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

  // Of the optimizer's first parameter: the piece that it steps, and its first moment.
  [[nodiscard]] const at::Tensor& stepped_parameter() const {
    return optimizer->optimizer().param_groups()[0].params()[0];
  }
  [[nodiscard]] at::Tensor average() const {
    auto& state = optimizer->optimizer().state().at(stepped_parameter().unsafeGetTensorImpl());
    return static_cast<torch::optim::AdamWParamState&>(*state).exp_avg();
  }

  Accelerator accelerator;
  torch::nn::Sequential net;
  std::optional<Prepared<torch::nn::Sequential>> model;
  std::optional<AcceleratedOptimizer> optimizer;
  std::vector<at::Tensor> results;

 private:
  std::int64_t width_;
};

inline void expect_same_tensors(const std::vector<at::Tensor>& own,
                                const std::vector<at::Tensor>& other) {
  ASSERT_EQ(own.size(), other.size());
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_TRUE(same_tensor(own[i], other[i])) << i;
}

}  // namespace accel::test
