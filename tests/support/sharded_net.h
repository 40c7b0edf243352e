// ShardedNet: a small model with what sharding has to tell apart, and steps of it. For the tests of divided models.
#pragma once

#include <cstdint>
#include <optional>

#include <ATen/ops/arange.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <accel/fsdp.h>
#include <accel/random.h>

namespace accel::test {

// An embedding whose table is also the output layer, two linear layers, one that forward() may leave out, and one frozen.
struct ShardedNetImpl : torch::nn::Module {
  torch::nn::Embedding table{nullptr};
  torch::nn::Linear first{nullptr};
  torch::nn::Linear second{nullptr};
  torch::nn::Linear spare{nullptr};
  torch::nn::Linear frozen{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  bool uses_spare = true;

  ShardedNetImpl() {
    table = register_module("table", torch::nn::Embedding(11, 6));
    first = register_module("first", torch::nn::Linear(6, 9));
    second = register_module("second", torch::nn::Linear(9, 6));
    spare = register_module("spare", torch::nn::Linear(6, 6));
    frozen = register_module("frozen", torch::nn::Linear(6, 6));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})));
    for (at::Tensor& parameter : frozen->parameters()) parameter.set_requires_grad(false);
  }
  at::Tensor forward(const at::Tensor& tokens) {
    at::Tensor hidden = second(first(table(tokens)).tanh());
    if (uses_spare) hidden = hidden + spare(hidden);
    return norm(frozen(hidden)).matmul(table->weight.t());
  }
};
TORCH_MODULE(ShardedNet);

inline ShardedNet seeded_net() {
  set_seed(3);
  return ShardedNet();
}

// [n] the same on every rank, different in each step.
inline at::Tensor tokens(std::int64_t n, int step) {
  return (at::arange(n, at::kLong) * 3 + step) % 11;
}

inline at::Tensor loss_of(const at::Tensor& output) {
  return (output - 0.5).square().mean();
}

inline std::optional<FullyShardedDataParallelPlugin> full_shard() {
  return FullyShardedDataParallelPlugin{};
}

}  // namespace accel::test
