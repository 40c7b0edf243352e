// CheckpointNames: file names in checkpoints of Accelerate and Transformers, for programs that search for such files.
// docs/reference/accelerate_checkpoints.md lists the files that libaccel reads and writes.
//
// Source:   accelerate.utils.constants.
#pragma once

#include <string_view>

namespace accel {

// Without an extension. The second optimizer is optimizer_1, the second scheduler scheduler_1, and so on. Random states have the
// rank: random_states_<rank>.
inline constexpr std::string_view kModelName = "pytorch_model";
inline constexpr std::string_view kSafeModelName = "model";
inline constexpr std::string_view kFsdpModelName = "pytorch_model_fsdp";
inline constexpr std::string_view kOptimizerName = "optimizer";
inline constexpr std::string_view kSchedulerName = "scheduler";
inline constexpr std::string_view kSamplerName = "sampler";
inline constexpr std::string_view kRngStateName = "random_states";

inline constexpr std::string_view kScalerName = "scaler.pt";
inline constexpr std::string_view kWeightsName = "pytorch_model.bin";
inline constexpr std::string_view kWeightsIndexName = "pytorch_model.bin.index.json";
inline constexpr std::string_view kSafeWeightsName = "model.safetensors";
inline constexpr std::string_view kSafeWeightsIndexName = "model.safetensors.index.json";

// {suffix} is different in each file of a set, for example -00001-of-00003.
inline constexpr std::string_view kWeightsPatternName = "pytorch_model{suffix}.bin";
inline constexpr std::string_view kSafeWeightsPatternName = "model{suffix}.safetensors";
inline constexpr std::string_view kProfilePatternName = "profile_{suffix}.json";

}  // namespace accel
