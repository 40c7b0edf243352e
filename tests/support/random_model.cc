#include "tests/support/random_model.h"

#include <algorithm>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/types.h>
#include <torch/utils.h>

namespace accel::test {

using torch::Tensor;

RandomModel::RandomModel(std::uint64_t seed, const RandomModelOptions& options)
    : options_(options), random_(seed), width_(4 * (1 + below(4))) {
  torch::manual_seed(seed);
  const std::int64_t num_layers = 1 + below(6);
  add_layer("layer0");
  const std::vector<Tensor> first = parameters();
  for (std::int64_t i = 1; i < num_layers; ++i) add_layer("layer" + std::to_string(i));
  if (below(3) != 0) return;
  for (Tensor& parameter : parameters()) {
    const bool is_of_first = std::any_of(
        first.begin(), first.end(), [&](const Tensor& it) { return it.is_same(parameter); });
    if (below(3) == 0 && (options_.may_freeze_first_layer || !is_of_first))
      parameter.requires_grad_(false);
  }
}

Tensor RandomModel::forward(const Tensor& input) {
  Tensor x = input;
  for (std::size_t i = 0; i < layers_.size(); ++i)
    if (i == 0 || (choices_ >> i & 3) != 3) x = x + layers_[i](torch::tanh(x));
  return x;
}

void RandomModel::add_experts(const std::string& name) {
  std::vector<std::shared_ptr<torch::nn::LinearImpl>> experts;
  for (int i = 0; i < 3; ++i)
    experts.push_back(
        register_module(name + "_" + std::to_string(i), torch::nn::Linear(width_, width_)));
  layers_.push_back(
      [this, experts](const Tensor& x) { return experts[choices_ >> 20 & 1]->forward(x); });
}

void RandomModel::add_layer(const std::string& name) {
  switch (below(10)) {
    case 0:
    case 1: {
      auto linear = register_module(
          name, torch::nn::Linear(torch::nn::LinearOptions(width_, width_).bias(below(2) == 0)));
      matrices_.push_back(linear->weight);
      layers_.push_back([linear](const Tensor& x) { return linear->forward(x); });
      break;
    }
    case 2: {
      auto norm =
          register_module(name, torch::nn::LayerNorm(torch::nn::LayerNormOptions({width_})));
      layers_.push_back([norm](const Tensor& x) { return norm->forward(x); });
      break;
    }
    case 3: {  // used again, further down
      if (layers_.empty()) return add_layer(name);
      layers_.push_back(layers_[static_cast<std::size_t>(below(std::ssize(layers_)))]);
      break;
    }
    case 4: {  // the same matrix both ways
      const Tensor weight = register_parameter(name, torch::randn({width_, width_}) / 4);
      matrices_.push_back(weight);
      layers_.push_back([weight](const Tensor& x) { return x.matmul(weight).matmul(weight.t()); });
      break;
    }
    case 5: {  // two parameters over one storage
      if (!options_.may_share_storage) return add_experts(name);
      const Tensor both = torch::randn({2, width_, width_}) / 4;
      const Tensor low = register_parameter(name + "low", both[0].detach());
      const Tensor high = register_parameter(name + "high", both[1].t().detach());
      layers_.push_back([low, high](const Tensor& x) { return x.matmul(low) + x.matmul(high); });
      break;
    }
    case 6: {  // another dtype
      const Tensor weight = register_parameter(name, torch::randn({width_}, torch::kDouble));
      layers_.push_back([weight](const Tensor& x) { return (x * weight).to(torch::kFloat); });
      break;
    }
    case 7:
      return add_experts(name);
    case 8: {  // that of an earlier layer under another name
      if (matrices_.empty()) return add_layer(name);
      const Tensor weight = register_parameter(
          name, matrices_[static_cast<std::size_t>(below(std::ssize(matrices_)))]);
      layers_.push_back([weight](const Tensor& x) { return x.matmul(weight.t()); });
      break;
    }
    default: {  // rows looked up, some twice, some never
      const Tensor table = register_parameter(name, torch::randn({width_ + 3, width_}));
      layers_.push_back([table](const Tensor& x) {
        return x * table.index_select(0, (x.select(1, 0).abs() * 5).to(torch::kLong).clamp_max(6));
      });
    }
  }
}

}  // namespace accel::test
