// DeepSpeedPlugin: shards the state of training over the ranks by the stages of ZeRO, with the names of HF Accelerate. DeepSpeed
// itself is not used.
//
//   accel::Accelerator accelerator({.deepspeed_plugin = accel::DeepSpeedPlugin{.zero_stage = 1, .gradient_clipping = 1.0}});
//
//   stage   divided                                        gradients after backward
//   0       nothing: copies (DDP)                          whole, in parameter.grad()
//   1       optimizer states                               whole, in parameter.grad()
//   2       and gradients (FSDP's SHARD_GRAD_OP)           this rank's shards
//   3       and parameters (FSDP's FULL_SHARD)             this rank's shards
//
// A DeepSpeed configuration file (hf_ds_config) overrides the rest; docs/guides/sharding.md lists the keys. If it has an optimizer
// or a scheduler, prepare() makes them, and the program names a stand-in:
//
//   auto [model, optimizer, loader, scheduler] =
//       accelerator.prepare(net, accel::DummyOptim{.params = net->parameters()}, data_loader,
//                           accel::DummyScheduler{.total_num_steps = 1000, .warmup_num_steps = 100});
//
// Errors    the Accelerator throws kInvalidArgument for a stage that does not exist, and kUnsupported for what is refused below.
// Source:   Rajbhandari et al. 2020, "ZeRO", section 5. docs/guides/sharding.md says what each stage keeps where.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

class Scheduler;

// Stands for the optimizer of the file. Its fields replace "auto" there.
struct DummyOptim {
  std::vector<at::Tensor> params;
  double lr = 0.001;
  double weight_decay = 0;
};

// Stands for the scheduler of the file, which follows the optimizer that was prepared before it. It steps once for each step of
// that, on all processes together.
struct DummyScheduler {
  // Of a program on one process: divided by the number of processes, unless split_batches is set. Where the file says "auto".
  std::optional<std::int64_t> total_num_steps;
  std::int64_t warmup_num_steps = 0;
  // Without a scheduler in the file: makes one.
  std::function<std::shared_ptr<Scheduler>(torch::optim::Optimizer&)> lr_scheduler_callable;
};

struct DeepSpeedPlugin {
  std::optional<int> zero_stage;  // 0 to 3. ACCELERATE_DEEPSPEED_ZERO_STAGE, else 2
  // The norm to which each step of a prepared optimizer clips its gradients, after all other changes of the program; 0: no
  // clipping. ACCELERATE_GRADIENT_CLIPPING, where "auto" is 1.0 as in Accelerate; otherwise 0.
  std::optional<double> gradient_clipping;
  // "none" or "cpu". Models train on the CPU, so both are the same, and accel says so once. "nvme" keeps the state of optimizers on
  // disk, and with stage 3 parameters. ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE, ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE.
  std::optional<std::string> offload_optimizer_device;
  std::optional<std::string> offload_param_device;
  // The folder of a file without a name, for the device nvme; each rank may have another one. Needs room for the state of this rank's
  // optimizers. ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH, where "none" is none. docs/guides/offload.md.
  std::optional<std::string> offload_optimizer_nvme_path;
  // The same for parameters: as FullyShardedDataParallelPlugin::offload_param_nvme_path.
  // ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH, where "none" is none.
  std::optional<std::string> offload_param_nvme_path;
  // With the device nvme for optimizers: parameters are stepped in the backward, as their gradients land, while the disk reads and
  // writes. What is stepped goes aside, and counts with step(), where gradients, options, states and parameters still are what they
  // were. Otherwise (gradients were clipped, or an overflow) step() forgets it and steps as without. The bits are the same. Needs
  // twice the room on disk, and memory for the new parameters. For one process, or gradients that are divided (stages 2 and 3).
  // Worth it where clipping is rare: AcceleratedOptimizer::backward_steps() tells. docs/guides/offload.md.
  bool step_in_backward = false;
  // The path of a JSON file, the JSON itself, or its base64. ACCELERATE_DEEPSPEED_CONFIG_FILE, where "none" is none.
  std::optional<std::string> hf_ds_config;
  // Of a file's train_micro_batch_size_per_gpu that is "auto": of several loaders' batch sizes the smallest; false: the largest.
  bool is_train_batch_min = true;
  // Of the model: what a file's bucket sizes that are "auto" are made of, as model.config.hidden_size is in Python. They
  // size DeepSpeed's own buffers, so here they only show in the text of ds_config.
  std::optional<std::int64_t> hidden_size;
};

}  // namespace accel
