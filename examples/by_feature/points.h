// Points: what the small examples learn.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include <ATen/ops/tensor.h>
#include <torch/data/example.h>

// Points of the plane, and on which side of a line they are.
struct Points {
  torch::data::Example<at::Tensor, std::int64_t> get(std::size_t index) const {
    const auto i = static_cast<double>(index);
    const double x = std::sin(0.37 * i), y = std::cos(1.13 * i);
    return {at::tensor({static_cast<float>(x), static_cast<float>(y)}), x + y > 0 ? 1 : 0};
  }
  std::size_t size() const { return 250; }
};
