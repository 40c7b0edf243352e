// DividedModel: a model of which each rank has parts, cut by hand.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>

#include <accel/checkpoint.h>

#include "libaccel/engine/checkpoint/ranks/rank_exchange.h"
#include "libaccel/tensors/divided_tensors.h"

namespace accel::test {

struct DividedNetImpl : torch::nn::Module {
  DividedNetImpl()
      : first(register_module("first", torch::nn::Linear(3, 11))),
        norm(register_module("norm", torch::nn::BatchNorm1d(11))),
        last(register_module("last", torch::nn::Linear(11, 2))) {}
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Linear last;
};
TORCH_MODULE(DividedNet);

// A model of which each rank has parts; `value` tells one state of it from another.
struct Divided {
  Divided(const checkpoint::RankExchange& ranks, int value) {
    divide(ranks.rank(), ranks.size(), value);
  }
  Divided(int rank, int size, int value) { divide(rank, size, value); }

  // Of each parameter, the rank knows its part alone: the rest of its own tensor is wrong on purpose.
  void divide(int rank, int size, int value) {
    const at::NoGradGuard no_grad;
    for (const at::Tensor& parameter : net->parameters()) {
      parameter.fill_(-1 - rank);
      const std::int64_t share = (parameter.numel() + size - 1) / size;
      const std::int64_t begin = std::min(rank * share, parameter.numel());
      const std::int64_t numel = std::min(share, parameter.numel() - begin);
      std::vector<checkpoint::TensorPart> parts;
      if (numel > 0) {
        parts.push_back({begin, parameter.detach().flatten().narrow(0, begin, numel)});
        parts[0].values.copy_(at::arange(begin, begin + numel) + 1000 * value);
      }
      divided.add(parameter, std::move(parts));
    }
    net->norm->running_mean.fill_(value);
  }

  CheckpointObjects objects() { return {.models = {net.get()}, .divided = &divided}; }

  // Whether this rank's parts are those of `value`.
  [[nodiscard]] bool has(int value) const {
    for (const at::Tensor& parameter : net->parameters()) {
      for (const auto& part : *divided.find(parameter)) {
        const at::Tensor expected =
            at::arange(part.begin, part.begin + part.values.numel(), at::kFloat) + 1000 * value;
        if (!part.values.equal(expected)) return false;
      }
    }
    return net->norm->running_mean.eq(value).all().item<bool>();
  }

  DividedNet net;
  checkpoint::DividedTensors divided;
};

}  // namespace accel::test
