// PageBudget: how many bytes of units a process keeps in memory at once where they come and go.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <accel/env_contract.h>

#include "libaccel/engine/settings/fsdp_settings.h"

namespace accel::sharding {

struct PageBudget {
  std::uint64_t bytes = 0;
  std::string_view said_by;  // the option or the variable, for messages
};

// max_live_bytes of the plugin, else ACCEL_FSDP_MAX_LIVE_BYTES ("512M"); nullopt when neither is set: then units are counted,
// not bytes. Throws kEnvInvalid.
[[nodiscard]] std::optional<PageBudget> page_budget(std::optional<std::uint64_t> max_live_bytes,
                                                    const EnvLookup& env);

// The budget, else room for limits.live_units of the largest. Throws as page_budget(); kOutOfMemory for a budget below the largest
// unit, and the remedy says the smallest that is taken.
[[nodiscard]] std::uint64_t live_bytes(const PagingLimits& limits,
                                       std::uint64_t largest_unit_bytes,
                                       const EnvLookup& env);

}  // namespace accel::sharding
