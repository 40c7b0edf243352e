#include "libaccel/engine/homes/page_budget.h"

#include <string>

#include <accel/error.h>

#include "libaccel/engine/settings/variable_values.h"
#include "runtime/byte_size.h"

namespace accel::sharding {
namespace {

constexpr const char* kVariable = "ACCEL_FSDP_MAX_LIVE_BYTES";

void check_budget(const std::optional<PageBudget>& budget, std::uint64_t largest_unit_bytes) {
  if (!budget || budget->bytes >= largest_unit_bytes) return;
  throw Error(ErrorCode::kOutOfMemory,
              std::string(budget->said_by) + " is " + std::to_string(budget->bytes) +
                  " bytes, and the largest unit has " + std::to_string(largest_unit_bytes),
              "give it at least " + std::to_string(largest_unit_bytes) +
                  ", or let an auto_wrap_policy cut smaller units");
}

}  // namespace

std::optional<PageBudget> page_budget(std::optional<std::uint64_t> max_live_bytes,
                                      const EnvLookup& env) {
  if (max_live_bytes) return PageBudget{*max_live_bytes, "max_live_bytes"};
  const std::optional<std::string> text = text_of(env, kVariable);
  if (!text) return std::nullopt;
  const std::optional<std::uint64_t> bytes = parse_byte_size(*text);
  if (bytes) return PageBudget{*bytes, kVariable};
  throw Error(ErrorCode::kEnvInvalid,
              std::string(kVariable) + " is '" + *text +
                  "', expected a number of bytes, as 1048576, 512M or 2G");
}

std::uint64_t live_bytes(const PagingLimits& limits,
                         std::uint64_t largest_unit_bytes,
                         const EnvLookup& env) {
  const std::optional<PageBudget> budget = page_budget(limits.max_live_bytes, env);
  check_budget(budget, largest_unit_bytes);
  return budget ? budget->bytes : limits.live_units * largest_unit_bytes;
}

}  // namespace accel::sharding
