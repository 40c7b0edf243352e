// YamlScalar: what a plain (unquoted) YAML scalar means to PyYAML, which follows YAML 1.1.
//
// yaml-cpp leaves scalars as text. The peer's files are read and written by PyYAML, where `no` and
// `off` are false, 1_000 is a thousand, 010 is eight and 1:30 is ninety, so the same rules are
// applied here. Source:  https://yaml.org/type/ (bool, int, float, null);
// tests/peer/config_files.py proves equality.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

namespace accel::launcher {

struct YamlNull {
  bool operator==(const YamlNull&) const = default;
};
struct YamlText {
  bool operator==(const YamlText&) const = default;
};

// YamlText: it is text, as it stands. Integers beyond 64 bits are given as a double.
using YamlScalar = std::variant<YamlNull, bool, std::int64_t, double, YamlText>;

[[nodiscard]] YamlScalar resolve_yaml_scalar(std::string_view text);

}  // namespace accel::launcher
