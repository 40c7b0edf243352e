// ConfigDocument: a YAML or JSON file as a tree of typed values that know their line.
//
// One tree for both formats, so that everything above it (schema, merge, messages) is written once.
// YAML scalars get the meaning PyYAML gives them (yaml_scalar.h).
//
// Threads:  pure functions.
// Cost:     documents above 1 MiB, 10,000 values or 16 levels are refused: they are no
// configuration.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

struct ConfigEntry;

struct ConfigValue {
  struct Null {};
  using List = std::vector<ConfigValue>;
  using Map = std::vector<ConfigEntry>;  // in the order of the file, repeated keys included

  std::variant<Null, bool, std::int64_t, double, std::string, List, Map> data;
  std::string text;  // scalars: as written
  int line = 0;      // from 1

  [[nodiscard]] bool is_null() const { return std::holds_alternative<Null>(data); }
};

struct ConfigEntry {
  std::string key;
  int line = 0;
  ConfigValue value;
};

// Values that no file said: line 0, and the text that YAML would have for them.
[[nodiscard]] ConfigValue text_value(std::string_view text);
[[nodiscard]] ConfigValue integer_value(std::int64_t number);
[[nodiscard]] ConfigValue bool_value(bool value);

enum class ConfigFormat { kYaml, kJson };

// The top level, which must be a map (an empty document is an empty one).
// Errors  kConfigSyntax: "<path>:<line>: ...".
[[nodiscard]] Result<ConfigValue::Map> parse_config(std::string_view text,
                                                    ConfigFormat format,
                                                    const std::string& path);

}  // namespace accel::launcher
