// RankTraining: the same model and batches trained by ranks, sharded or as copies, and by one process that knows nothing
// of ranks: what it computes is the definition of what they have to.
//
//   one process   has a replica of the model for each rank, of which each keeps its own averages of BatchNorm, and TorchScript
//                 its own record of runs. For each step: forward and backward of every rank's batches on its replica; each
//                 replica's gradients times 1 / ranks; their sum in rank order, of each node first; unscaling and clipping; a
//                 step of the optimizer; its weights to all
//   ranks         Accelerator: prepare, accumulate, backward, clip_grad_norm_, step
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
#include <accel/types.h>

#include "tests/support/model_zoo.h"

namespace accel::test {

// The last elements of a tensor, which fill no vector register, are rounded otherwise by the fused kernels. Shards are padded and
// have no such rest.
enum class StepKernels { kPlain, kFused, kFusedOnPaddedMemory };

struct Recipe {
  int steps = 3;
  int accumulation = 1;
  // Autocast, and for fp16 a scaler. Where ranks divide parameters, trained ones of 16 bits become fp32 then.
  PrecisionType precision = PrecisionType::kNo;
  bool keeps_16_bits =
      false;  // for one process: the ranks have copies, whose parameters stay as they are
  int ranks_per_node = 1 << 20;  // for one process: of which gradients are summed first
  StepKernels kernels = StepKernels::kPlain;
  std::optional<double> max_norm;  // to clip by
  // By step; for one process, which clips by these instead of its own: the norms of ranks are sums in another order.
  std::vector<at::Tensor> norms = {};
  std::string backend;            // of the collectives; empty: the default
  std::optional<int> zero_stage;  // of a DeepSpeedPlugin, in place of the other plugin
};

struct Trained {
  std::vector<at::Tensor> parameters;
  std::vector<at::Tensor> buffers;
  std::vector<at::Tensor> losses;  // of this rank's batches
  std::vector<at::Tensor> norms;   // by step, where there was a max_norm; of one process in fp64
};

using MakeZooModel = std::function<std::shared_ptr<ZooModel>()>;
using Plugin = std::optional<FullyShardedDataParallelPlugin>;

// Requires: every rank calls it.
Trained train_on_ranks(const MakeZooModel& make, const Plugin& plugin, const Recipe& recipe);
// rank: whose losses and buffers are returned.
Trained train_alone(const MakeZooModel& make, int ranks, int rank, const Recipe& recipe);
// Whether this processor has kernels for the recipe's precision: oneDNN has none for an LSTM in fp16 on many. Says on stderr
// what it has none for; throws what else goes wrong.
bool can_run(const MakeZooModel& make, const Recipe& recipe);

struct Lesson {
  MakeZooModel make;
  Recipe recipe;
};

// The same of many models for this rank of the job, without norms. Each rank trains some of them for all, since training alone
// for n ranks takes n times as long as a rank. Requires: every rank calls it.
std::vector<Trained> train_alone_for_ranks(const std::vector<Lesson>& lessons);

// The first tensor that differs, and by how much; empty when all are equal to the bit.
std::string difference(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b);

}  // namespace accel::test
