// ConfigSchema: every key a configuration file may have, once. The reader and docs/reference/config.md use
// it.
//
// Threads:  constant data.
#pragma once

#include <span>
#include <string_view>

namespace accel::launcher {

enum class ConfigType {
  kText,
  kInteger,
  kBool,
  kChoice,  // text, one of `choices`
  kMap,
  kList,
};

enum class ConfigEffect {
  kUsed,       // accel-launch acts on it
  kElsewhere,  // accepted: it concerns a feature that is not chosen or has no meaning on one
               // machine
  kRetired,    // of an older or a differently documented version: accepted with a warning
};

struct ConfigKey {
  std::string_view name;
  ConfigType type = ConfigType::kText;
  std::string_view choices;   // kChoice only, separated by commas; case is ignored
  std::string_view fallback;  // what holds when the key is absent, for the reader
  ConfigEffect effect = ConfigEffect::kUsed;
  std::string_view meaning;  // one sentence; for kRetired, what replaced it
};

// Top level, in alphabetical order.
[[nodiscard]] std::span<const ConfigKey> config_keys();

// The keys of `dynamo_config`, without the prefix "dynamo_" that they may carry.
[[nodiscard]] std::span<const ConfigKey> dynamo_keys();

[[nodiscard]] const ConfigKey* find_config_key(std::string_view name);

[[nodiscard]] std::string_view to_string(ConfigType type);

}  // namespace accel::launcher
