// KnownModels: the tensors of a transformers model from its config.json, without its files.
//
// What AutoModel makes of the configuration: the model without a head, as `accelerate estimate-memory` counts it.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include <accel/result.h>

#include "checkpoint_tools/models/memory_estimate.h"

namespace accel::launcher {

// Names and sizes are those of the model; parameters only, each tied one once. `config` is what config.json holds.
// Errors  kConfigInvalidValue: model_type is missing or not known (the known ones are listed), or a number that it needs is
// missing, no positive number, or absurd (names the key).
[[nodiscard]] Result<ModelInventory> inventory_of_config(const nlohmann::json& config,
                                                         const std::string& path);

}  // namespace accel::launcher
