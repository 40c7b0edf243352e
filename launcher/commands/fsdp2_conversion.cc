// Keys by what becomes of them; all others stay.
//
//   FSDP 1                     FSDP 2
//   fsdp_sharding_strategy     fsdp_reshard_after_forward: true for FULL_SHARD and HYBRID_SHARD (also by number), false
//                              for the others; the same for a strategy under fsdp_reshard_after_forward
//   fsdp_backward_prefetch, fsdp_sync_module_states, fsdp_use_orig_params    dropped: FSDP 2 has no such choice
//   fsdp_forward_prefetch      dropped: FSDP 2 of the peer has none yet
//
// The prefix fsdp_ may be missing in a file; then it is missing in the result.

#include "launcher/commands/fsdp2_conversion.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

namespace accel::launcher {
namespace {

constexpr std::string_view kPrefix = "fsdp_";
constexpr std::string_view kReshard = "reshard_after_forward";

std::string_view bare(std::string_view key) {
  if (key.starts_with(kPrefix)) key.remove_prefix(kPrefix.size());
  return key;
}

struct Strategy {
  std::string_view name;
  bool reshards;
};
// By number, from 1.
constexpr std::array<Strategy, 5> kStrategies = {{{"FULL_SHARD", true},
                                                  {"SHARD_GRAD_OP", false},
                                                  {"NO_SHARD", false},
                                                  {"HYBRID_SHARD", true},
                                                  {"HYBRID_SHARD_ZERO2", false}}};

std::optional<bool> reshards(const ConfigValue& value) {
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) {
    if (*number < 1 || *number > std::ssize(kStrategies)) return std::nullopt;
    return kStrategies[static_cast<std::size_t>(*number - 1)].reshards;
  }
  for (const Strategy& strategy : kStrategies)
    if (value.text == strategy.name) return strategy.reshards;
  return std::nullopt;
}

ConfigValue truth(bool value) {
  return {.data = value, .text = value ? "true" : "false", .line = 0};
}

bool is_version_2(const ConfigValue::Map& fsdp) {
  return std::any_of(fsdp.begin(), fsdp.end(), [](const ConfigEntry& entry) {
    return bare(entry.key) == "version" && entry.value.text == "2";
  });
}

ConfigValue::Map convert(const ConfigValue::Map& fsdp, std::vector<std::string>& notices) {
  ConfigValue::Map converted;
  for (const ConfigEntry& entry : fsdp) {
    const std::string_view key = bare(entry.key);
    if (key == "backward_prefetch" || key == "sync_module_states" || key == "use_orig_params") {
      notices.push_back(entry.key + " is left out: FSDP 2 has no such choice");
    } else if (key == "forward_prefetch") {
      notices.push_back(entry.key + " is left out: FSDP 2 of HF Accelerate does not have it");
    } else if (key == "sharding_strategy" || key == kReshard) {
      ConfigEntry reshard = entry;
      const std::string prefix = entry.key.starts_with(kPrefix) ? std::string(kPrefix) : "";
      reshard.key = prefix + std::string(kReshard);
      if (const auto value = reshards(entry.value)) reshard.value = truth(*value);
      std::erase_if(converted, [&](const ConfigEntry& e) { return e.key == reshard.key; });
      converted.push_back(std::move(reshard));
    } else if (key != "version") {
      converted.push_back(entry);
    }
  }
  converted.push_back({.key = std::string(kPrefix) + "version",
                       .line = 0,
                       .value = {.data = std::int64_t{2}, .text = "2", .line = 0}});
  return converted;
}

}  // namespace

Fsdp2Conversion convert_to_fsdp2(ConfigValue::Map document) {
  Fsdp2Conversion result;
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
    *fsdp = convert(*fsdp, result.notices);
  }
  result.document = std::move(document);
  return result;
}

}  // namespace accel::launcher
