// ModelFiles: the tensors of a model from where it lies: a safetensors file, an index, a folder, a config.json, or the
// name of a model that the local cache of the Hugging Face Hub holds.
#pragma once

#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "checkpoint_tools/models/memory_estimate.h"

namespace accel::launcher {

// Of a folder: model.safetensors.index.json, else its .safetensors files (weight_files.h), else config.json. Of files only headers are read,
// never data. A tensor that two shards name counts once.
// Cost:     some 50 us for each file, and 1 us for each tensor.
// Errors  kConfigUnreadable: nothing of that name, no right to read it, or a file of the model is missing (named); when it may be a
//         Hub model, the remedy is the command that fetches it. kUsage: the name is empty.
//         kSafetensorsHeader, kConfigSyntax, kConfigInvalidValue: what is there cannot be used (path and reason).
[[nodiscard]] Result<ModelInventory> find_model(const std::string& name, const EnvMap& environment);

}  // namespace accel::launcher
