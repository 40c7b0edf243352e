// RankTraining: the same model and batches trained by ranks, sharded or as copies, and by one process that knows nothing
// of ranks: what it computes is the definition of what they have to.
//
//   one process   has a replica of the model for each rank, of which each keeps its own averages of BatchNorm, and TorchScript
//                 its own record of runs. For each step: forward and backward of every rank's batches on its replica; each
//                 replica's gradients times 1 / ranks; their sum in rank order; a step of the optimizer; its weights to all
//   ranks         Accelerator: prepare, accumulate, backward, step
//
// The order of sums is the same, so that they are equal to the bit.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/fsdp.h>

#include "tests/support/model_zoo.h"

namespace accel::test {

struct Recipe {
  int steps = 3;
  int accumulation = 1;
  bool is_bf16 =
      false;  // autocast; ranks shard fully, so that trained parameters of 16 bits become fp32
  std::string backend;            // of the collectives; empty: the default
  std::optional<int> zero_stage;  // of a DeepSpeedPlugin, in place of the other plugin
};

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> losses;  // of this rank's batches
};

using MakeZooModel = std::function<std::shared_ptr<ZooModel>()>;
using Plugin = std::optional<FullyShardedDataParallelPlugin>;

// Requires: every rank calls it.
Trained train_on_ranks(const MakeZooModel& make, const Plugin& plugin, const Recipe& recipe);
// rank: whose losses and buffers are returned.
Trained train_alone(const MakeZooModel& make, int ranks, int rank, const Recipe& recipe);
// The same of many models for this rank of the job. Each rank trains some of them for all, since training alone for n ranks
// takes n times as long as a rank. Requires: every rank calls it.
std::vector<Trained> train_alone_for_ranks(const std::vector<MakeZooModel>& makes,
                                           const Recipe& recipe);

// The first tensor that differs, and by how much; empty when all are equal to the bit.
std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace accel::test
