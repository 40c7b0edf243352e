// PrecisionTrainer: a small model trained under a policy of mixed precision, on ranks of one node or of several.
#pragma once

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <accel/accelerator.h>
#include <accel/random.h>

#include "libaccel/engine/shm/memory/node_identity.h"
#include "tests/support/rank_group.h"

namespace accel::test {

inline constexpr std::int64_t kWidth = 7;

inline torch::nn::Sequential seeded_net() {
  set_seed(5);
  return torch::nn::Sequential(torch::nn::Linear(kWidth, 2 * kWidth),
                               torch::nn::LayerNorm(torch::nn::LayerNormOptions({2 * kWidth})),
                               torch::nn::Linear(2 * kWidth, kWidth));
}

enum class Rule { kSgd, kAdamW };

inline std::shared_ptr<torch::optim::Optimizer> make_optimizer(
    const std::vector<at::Tensor>& parameters, Rule rule) {
  if (rule == Rule::kAdamW) {
    return std::make_shared<torch::optim::AdamW>(parameters, torch::optim::AdamWOptions(0.01));
  }
  return std::make_shared<torch::optim::SGD>(parameters,
                                             torch::optim::SGDOptions(0.1).momentum(0.9));
}

// [4, kWidth] of a rank.
inline at::Tensor batch(int step, int rank) {
  return (at::arange(4 * kWidth).view({4, kWidth}) + 3 * step + rank).sin();
}

inline at::Tensor loss_of(const at::Tensor& output) {
  return (output.to(at::kFloat) - 0.5).square().mean();
}

inline at::Tensor flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> parts;
  for (const at::Tensor& tensor : tensors) parts.push_back(tensor.detach().flatten());
  return at::cat(parts);
}

using Policy = std::optional<std::variant<MixedPrecisionPolicy, std::string>>;

inline const MixedPrecisionPolicy kBf16{.param_dtype = at::kBFloat16, .reduce_dtype = at::kFloat};

enum class Cut { kByDefault, kUnitForEachModule };

class PrecisionTrainer {
 public:
  explicit PrecisionTrainer(Policy policy,
                            Rule rule = Rule::kAdamW,
                            torch::nn::Sequential net = seeded_net(),
                            Cut cut = Cut::kByDefault)
      : accelerator_(options(std::move(policy), cut)), net_(std::move(net)) {
    auto [model, optimizer] = accelerator_.prepare(net_, make_optimizer(net_->parameters(), rule));
    model_.emplace(model);
    optimizer_.emplace(optimizer);
  }

  at::Tensor forward(int step) { return (*model_)(batch(step, accelerator_.process_index())); }
  void train(int from, int to) {
    for (int step = from; step < to; ++step) {
      accelerator_.backward(loss_of(forward(step)));
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }
  // Requires: every rank calls it; over nodes others read this rank's shards meanwhile.
  at::Tensor values() {
    at::Tensor values = flat(net_->parameters());
    accelerator_.wait_for_everyone();
    return values;
  }
  Accelerator& accelerator() { return accelerator_; }
  torch::nn::Sequential& net() { return net_; }
  torch::optim::Optimizer& optimizer() { return optimizer_->optimizer(); }
  void save_model(const std::string& folder) { accelerator_.save_model(*model_, folder); }

 private:
  static AcceleratorOptions options(Policy policy, Cut cut) {
    AcceleratorOptions options;
    options.fsdp_plugin.emplace();
    if (cut == Cut::kUnitForEachModule) {
      options.fsdp_plugin->auto_wrap_policy = AutoWrapPolicy::kSizeBasedWrap;
      options.fsdp_plugin->min_num_params = 1;
    }
    options.fsdp_plugin->mixed_precision_policy = std::move(policy);
    return options;
  }
  Accelerator accelerator_;
  torch::nn::Sequential net_;
  std::optional<Prepared<torch::nn::Sequential>> model_;
  std::optional<AcceleratedOptimizer> optimizer_;
};

struct Layout {
  int ranks = 2;
  int of_a_node = 2;  // fewer than there are: parameters are paged
};

class PrecisionOnRanks : public ::testing::TestWithParam<Layout> {
 protected:
  template <typename F>
  static void run_ranks(F body) {
    accel::test::run_ranks(GetParam().ranks, [&] {
      const int node = accel::test::rank_of_this_process() / GetParam().of_a_node;
      ::setenv(shm::kTestNodeVariable, ("node-" + std::to_string(node)).c_str(), 1);
      body();
    });
  }
};

inline std::string layout_name(const ::testing::TestParamInfo<Layout>& info) {
  return std::to_string(info.param.ranks) + "WithNodesOf" + std::to_string(info.param.of_a_node);
}

}  // namespace accel::test
