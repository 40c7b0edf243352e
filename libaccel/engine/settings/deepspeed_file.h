// DeepSpeedFile: what a configuration file of DeepSpeed says to programs of libaccel.
//
// The stage of ZeRO, batches to a step mixed precision, the optimizer and the scheduler are taken. What DeepSpeed alone can use, because it says how its own
// buffers and messages are made, becomes a notice; what would change numbers or memory and is not there is refused.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/precision.h>

#include "libaccel/engine/settings/deepspeed_sections.h"

namespace accel::sharding {

struct DeepSpeedFile {
  // What is "auto" or left out is unset: the plugin or its variable says it.
  std::optional<int> zero_stage;
  std::optional<std::string> offload_optimizer_device;
  std::optional<std::string> offload_param_device;
  std::optional<std::string> offload_optimizer_nvme_path;
  std::optional<std::string> offload_param_nvme_path;
  std::optional<double> gradient_clipping;
  bool clips_automatically = false;                // gradient_clipping is "auto"
  std::optional<int> gradient_accumulation_steps;  // 1 when it is left out, as in the peer
  std::optional<bool> is_fp16;                     // fp16.enabled
  std::optional<bool> is_bf16;                     // bf16.enabled
  std::optional<GradScalerKwargs> loss_scale;      // of a section fp16 that is not switched off
  std::optional<OptimizerSection> optimizer;
  std::optional<SchedulerSection> scheduler;
  std::string config;  // the file's JSON, with what it leaves out and HF Accelerate adds
  std::vector<std::string> notices;
};

// text: JSON. path: for messages. Throws kConfigSyntax, kConfigInvalidValue naming the key, kUnsupported naming a section that is
// not there.
[[nodiscard]] DeepSpeedFile parse_deepspeed_file(std::string_view text, const std::string& path);

}  // namespace accel::sharding
