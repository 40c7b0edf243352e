// real_peak(): the most memory that a model takes in two steps, for plans to be compared with.
#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include "tests/support/counted_memory.h"

namespace accel::test {

// Bytes: parameters and buffers, and the most that two steps allocate beside them. step: forward and backward; update: what follows.
inline std::int64_t real_peak(torch::nn::Module& model,
                              const std::function<void()>& update,
                              const std::function<void()>& step) {
  std::int64_t bytes = 0;
  for (const at::Tensor& tensor : model.parameters())
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  for (const at::Tensor& tensor : model.buffers())
    bytes += static_cast<std::int64_t>(tensor.nbytes());
  CountedMemory& memory = CountedMemory::get();
  memory.begin();
  for (int i = 0; i < 2; ++i) {
    model.zero_grad();
    step();
    update();
  }
  return bytes + memory.peak();
}

inline std::int64_t real_peak(torch::nn::Module& model,
                              torch::optim::Optimizer* optimizer,
                              const std::function<void()>& step) {
  const std::function<void()> update = [optimizer] {
    if (optimizer != nullptr) optimizer->step();
  };
  return real_peak(model, update, step);
}

}  // namespace accel::test
