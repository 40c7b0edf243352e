// SettingsAgreement: that all ranks divide a model in the same way.
//
// Options that may differ between ranks (what a rank keeps and fetches ahead of pages) are no part of it.
#pragma once

#include <optional>
#include <string>

#include <accel/accelerator_options.h>

#include "libaccel/engine/precision/precision_recipe.h"
#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel {
class ProcessGroup;
}

namespace accel::sharding {

// A line for each option of the plugin, "sharding_strategy FULL_SHARD"; "fsdp_plugin unset" alone without one. Pure.
[[nodiscard]] std::string describe(const std::optional<FsdpSettings>& settings,
                                   const PrecisionRecipe& recipe);

// How the first line of `other` that differs from rank 0's `reference` differs, as the end of a sentence
// ("has sharding_strategy NO_SHARD where ..."); nullopt when they are equal. Pure.
[[nodiscard]] std::optional<std::string> first_differing_option(const std::string& reference,
                                                                const std::string& other);

// Throws kInvalidArgument, the same on every rank, naming the first rank that has other settings than rank 0, and the option.
// Requires: every rank calls it. Cost: one message of 16 bytes.
void verify_same_settings(const std::optional<FsdpSettings>& settings,
                          const PrecisionRecipe& recipe,
                          ProcessGroup& group);

// The same of how copies exchange gradients: "bucket_cap_mb 25".
[[nodiscard]] std::string describe(const DistributedDataParallelKwargs& options);
void verify_same_exchange(const DistributedDataParallelKwargs& options, ProcessGroup& group);

}  // namespace accel::sharding
