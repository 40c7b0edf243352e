// PageBudget: how many bytes of units a rank keeps in memory at once where they come and go (FULL_SHARD over several nodes).
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include <accel/env_contract.h>

namespace accel::sharding {

// ACCEL_FSDP_MAX_LIVE_BYTES ("512M"); nullopt when it is not set: then units are counted, not bytes. Throws kEnvInvalid.
[[nodiscard]] std::optional<std::uint64_t> page_budget(const EnvLookup& env);

// Throws kOutOfMemory for a budget below the largest unit; the remedy says the smallest that is taken.
void check_page_budget(std::optional<std::uint64_t> budget, std::uint64_t largest_unit_bytes);

}  // namespace accel::sharding
