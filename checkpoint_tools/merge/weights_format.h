// WeightsFormat: in which kind of file merged weights go.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/checkpoint/layout.h"

namespace accel::launcher {

enum class WeightsFormat {
  kSafetensors,
  kTorch,  // torch.save() of a dict: a zip archive with a pickle
};

// Of the first model, the second and so on: "model.safetensors", "pytorch_model_1.bin".
[[nodiscard]] inline std::string weights_name(WeightsFormat format, std::size_t model = 0) {
  return format == WeightsFormat::kSafetensors
             ? checkpoint::numbered("model", model) + ".safetensors"
             : checkpoint::numbered("pytorch_model", model) + ".bin";
}

}  // namespace accel::launcher
