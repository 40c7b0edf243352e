// PageBudget: how many bytes of units a rank keeps in memory at once where they come and go (FULL_SHARD over several nodes).
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include <accel/env_contract.h>

namespace accel::sharding {

struct PageBudget {
  std::uint64_t bytes = 0;
  std::string_view said_by;  // the option or the variable, for messages
};

// max_live_bytes of the plugin, else ACCEL_FSDP_MAX_LIVE_BYTES ("512M"); nullopt when neither is set: then units are counted,
// not bytes. Throws kEnvInvalid.
[[nodiscard]] std::optional<PageBudget> page_budget(std::optional<std::uint64_t> max_live_bytes,
                                                    const EnvLookup& env);

// Throws kOutOfMemory for a budget below the largest unit; the remedy says the smallest that is taken.
void check_page_budget(const std::optional<PageBudget>& budget, std::uint64_t largest_unit_bytes);

}  // namespace accel::sharding
