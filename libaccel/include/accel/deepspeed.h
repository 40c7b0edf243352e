// DeepSpeedPlugin: how much of the state of training is divided over the ranks, by the stages of ZeRO, with the names of HF
// Accelerate. DeepSpeed itself is not used.
//
//   accel::Accelerator accelerator({.deepspeed_plugin = accel::DeepSpeedPlugin{.zero_stage = 1, .gradient_clipping = 1.0}});
//
//   stage   divided                                        gradients after backward
//   0       nothing: copies (DDP)                          whole, in parameter.grad()
//   1       optimizer states                               whole, in parameter.grad()
//   2       and gradients (FSDP's SHARD_GRAD_OP)           this rank's shards
//   3       and parameters (FSDP's FULL_SHARD)             this rank's shards
//
// A configuration file of DeepSpeed's own (hf_ds_config) goes before the rest; docs/sharding.md says what is read.
// Errors    the Accelerator throws kInvalidArgument for a stage that does not exist, and kUnsupported for what is refused below.
// Source:   Rajbhandari et al. 2020, "ZeRO", section 5. docs/sharding.md says what each stage keeps where.
#pragma once

#include <optional>
#include <string>

namespace accel {

struct DeepSpeedPlugin {
  std::optional<int> zero_stage;  // 0 to 3. ACCELERATE_DEEPSPEED_ZERO_STAGE, else 2
  // What steps of prepared optimizers clip the norm of their gradients to, after all that the program does to them; 0: they do
  // not. ACCELERATE_GRADIENT_CLIPPING, where "auto" is 1.0 as in the peer; else 0.
  std::optional<double> gradient_clipping;
  // "none"; others are refused. ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE, ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE.
  std::optional<std::string> offload_optimizer_device;
  std::optional<std::string> offload_param_device;
  // The path of a JSON file, the JSON itself, or its base64. ACCELERATE_DEEPSPEED_CONFIG_FILE, where "none" is none.
  std::optional<std::string> hf_ds_config;
};

}  // namespace accel
