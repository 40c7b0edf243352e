// Sine: the points of a curve, a data set of LibTorch.
#pragma once

#include <torch/torch.h>

struct Sine : torch::data::Dataset<Sine> {
  torch::data::Example<> get(std::size_t index) override {
    const auto x = torch::full({1}, static_cast<double>(index) / 100 - 5);
    return {x, torch::sin(x)};
  }
  torch::optional<std::size_t> size() const override { return 1000; }
};
