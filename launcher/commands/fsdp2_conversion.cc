// Keys by what becomes of them; all others stay.
//
//   FSDP 1                     FSDP 2
//   fsdp_sharding_strategy     fsdp_reshard_after_forward: true for FULL_SHARD and HYBRID_SHARD (also by number), false
//                              for the others; the same for a strategy under fsdp_reshard_after_forward
//   fsdp_backward_prefetch, fsdp_sync_module_states, fsdp_use_orig_params    dropped: FSDP 2 has no such choice
//   fsdp_forward_prefetch      dropped: FSDP 2 of the peer has none yet
//
// The prefix fsdp_ may be missing in a file; then it is missing in the result. A strategy that is none, which the peer would carry
// over, is refused: no worker could read it.

#include "launcher/commands/fsdp2_conversion.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::launcher {
namespace {

constexpr std::string_view kFsdpPrefix = "fsdp_";
constexpr std::string_view kReshard = "reshard_after_forward";

std::string_view bare_key(std::string_view key) {
  if (key.starts_with(kFsdpPrefix)) key.remove_prefix(kFsdpPrefix.size());
  return key;
}

struct ShardingStrategy {
  std::string_view name;
  bool reshards;
};
// By number, from 1.
constexpr std::array<ShardingStrategy, 5> kStrategies = {{{"FULL_SHARD", true},
                                                          {"SHARD_GRAD_OP", false},
                                                          {"NO_SHARD", false},
                                                          {"HYBRID_SHARD", true},
                                                          {"HYBRID_SHARD_ZERO2", false}}};

std::optional<bool> reshards(const ConfigValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) {
    if (*number < 1 || *number > std::ssize(kStrategies)) return std::nullopt;
    return kStrategies[static_cast<std::size_t>(*number - 1)].reshards;
  }
  for (const ShardingStrategy& strategy : kStrategies)
    if (value.text == strategy.name) return strategy.reshards;
  return std::nullopt;
}

ConfigValue truth(bool value) {
  return {.data = value, .text = value ? "true" : "false", .line = 0};
}

bool is_true_or_false(const ConfigValue& value) {
  return std::holds_alternative<bool>(value.data) || value.text == "true" || value.text == "false";
}

std::optional<Error> fault_of_entry(const ConfigEntry& entry) {
  const auto wrong = [&](const std::string& expected) {
    return Error(ErrorCode::kConfigInvalidValue,
                 "line " + std::to_string(entry.line) + ": " + entry.key + " is '" +
                     printable(entry.value.text) + "', expected " + expected,
                 "correct the line, or remove it");
  };
  const std::string_view key = bare_key(entry.key);
  if (entry.value.is_null()) return std::nullopt;
  if (key == "version" && entry.value.text != "1" && entry.value.text != "2")
    return wrong("1 or 2");
  const std::string strategies =
      "FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2";
  if (key == "sharding_strategy" && !reshards(entry.value)) return wrong(strategies);
  if (key == kReshard && !reshards(entry.value) && !is_true_or_false(entry.value))
    return wrong("true, false, " + strategies);
  return std::nullopt;
}

// Of keys that are given twice: the last holds.
std::vector<std::string> repetitions(const ConfigValue::Map& entries) {
  std::vector<std::string> notices;
  for (std::size_t i = 0; i < entries.size(); ++i)
    for (std::size_t j = 0; j < i; ++j)
      if (entries[i].key == entries[j].key) {
        notices.push_back(printable(entries[i].key) + " is given in line " +
                          std::to_string(entries[j].line) + " and again in line " +
                          std::to_string(entries[i].line) + ": the last one holds");
        break;
      }
  return notices;
}

bool is_version_2(const ConfigValue::Map& fsdp) {
  return std::any_of(fsdp.begin(), fsdp.end(), [](const ConfigEntry& entry) {
    return bare_key(entry.key) == "version" && entry.value.text == "2";
  });
}

ConfigValue::Map convert(const ConfigValue::Map& fsdp, std::vector<std::string>& notices) {
  ConfigValue::Map converted;
  for (const ConfigEntry& entry : fsdp) {
    const std::string_view key = bare_key(entry.key);
    if (key == "backward_prefetch" || key == "sync_module_states" || key == "use_orig_params") {
      notices.push_back(entry.key + " is left out: FSDP 2 has no such choice");
    } else if (key == "forward_prefetch") {
      notices.push_back(entry.key + " is left out: FSDP 2 of HF Accelerate does not have it");
    } else if (key == "sharding_strategy" || key == kReshard) {
      ConfigEntry reshard = entry;
      const std::string prefix = entry.key.starts_with(kFsdpPrefix) ? std::string(kFsdpPrefix) : "";
      reshard.key = prefix + std::string(kReshard);
      if (const auto value = reshards(entry.value)) reshard.value = truth(*value);
      std::erase_if(converted, [&](const ConfigEntry& e) { return e.key == reshard.key; });
      converted.push_back(std::move(reshard));
    } else if (key != "version") {
      converted.push_back(entry);
    }
  }
  converted.push_back({.key = std::string(kFsdpPrefix) + "version",
                       .line = 0,
                       .value = {.data = std::int64_t{2}, .text = "2", .line = 0}});
  return converted;
}

}  // namespace

Result<Fsdp2Conversion> convert_to_fsdp2(ConfigValue::Map document) {
  Fsdp2Conversion result;
  result.notices = repetitions(document);
  const auto section = std::find_if(document.begin(), document.end(), [](const ConfigEntry& entry) {
    return entry.key == "fsdp_config";
  });
  auto* fsdp =
      section == document.end() ? nullptr : std::get_if<ConfigValue::Map>(&section->value.data);
  if (fsdp == nullptr || fsdp->empty()) {
    result.notices.emplace_back("No FSDP config found in the config file, skipping conversion...");
  } else if (is_version_2(*fsdp)) {
    result.notices.emplace_back(
        "Config already specifies FSDP2, skipping conversion... If it has keys of FSDP 1, set "
        "fsdp_version to 1 and run this again");
  } else {
    for (const ConfigEntry& entry : *fsdp)
      if (auto fault = fault_of_entry(entry)) return *std::move(fault);
    for (std::string& notice : repetitions(*fsdp)) result.notices.push_back(std::move(notice));
    *fsdp = convert(*fsdp, result.notices);
  }
  result.document = std::move(document);
  return result;
}

}  // namespace accel::launcher
