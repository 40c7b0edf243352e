// The model and the data of user_program.cc and torch_program.cc.
#pragma once

#include <torch/torch.h>

namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(64, 256));
    second = register_module("second", torch::nn::Linear(256, 256));
    last = register_module("last", torch::nn::Linear(256, 10));
    dropout = register_module("dropout", torch::nn::Dropout(0.1));
  }

  at::Tensor forward(const at::Tensor& images) {
    at::Tensor hidden = torch::relu(first(images));
    hidden = dropout(torch::relu(second(hidden)));
    return last(hidden);
  }

  torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr};
  torch::nn::Dropout dropout{nullptr};
};
TORCH_MODULE(Net);

struct Images : torch::data::datasets::Dataset<Images> {
  torch::data::Example<> get(std::size_t index) override {
    const at::Tensor image = torch::full({64}, static_cast<double>(index % 10) / 10);
    return {image, torch::tensor(static_cast<std::int64_t>(index % 10))};
  }
  torch::optional<std::size_t> size() const override { return 10'000; }
};

}  // namespace
