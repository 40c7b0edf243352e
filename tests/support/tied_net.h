// TiedNet: one weight under two names, which parameters() of LibTorch lists twice.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/pimpl.h>

namespace accel::test {

struct TiedNetImpl : torch::nn::Module {
  TiedNetImpl() {
    first = register_module("first", torch::nn::Linear(6, 6));
    middle = register_module("middle", torch::nn::Linear(6, 6));
    last = register_module("last", std::make_shared<Head>(first->weight));
  }
  at::Tensor forward(const at::Tensor& input) {
    return middle(first(input).tanh()).tanh().matmul(last->weight);
  }
  // As Python's parameters().
  [[nodiscard]] std::vector<at::Tensor> once() const {
    return {first->weight, first->bias, middle->weight, middle->bias};
  }

  struct Head : torch::nn::Module {
    explicit Head(const at::Tensor& tied) : weight(register_parameter("weight", tied)) {}
    at::Tensor weight;
  };
  torch::nn::Linear first{nullptr};
  torch::nn::Linear middle{nullptr};
  std::shared_ptr<Head> last;
};
TORCH_MODULE(TiedNet);

}  // namespace accel::test
