#include "launcher/config/section_reader.h"

#include <optional>
#include <utility>

#include "launcher/flags/strategies/option_value.h"

namespace accel::launcher {
namespace {

// The key without the strategy's prefix, as messages show it.
std::string bare(const Strategy& strategy, std::string_view key) {
  if (key.starts_with(strategy.prefix)) key.remove_prefix(strategy.prefix.size());
  return std::string(key);
}

std::string shown(const ConfigValue& value) {
  const bool is_scalar = !std::holds_alternative<ConfigValue::Map>(value.data) &&
                         !std::holds_alternative<ConfigValue::List>(value.data);
  return is_scalar ? "'" + value.text + "'" : "a list or map";
}

}  // namespace

void read_section(const Strategy& strategy,
                  const ConfigValue::Map& map,
                  const std::string& path,
                  OptionValues& values,
                  std::vector<FileNotice>& notices,
                  Faults& faults) {
  const std::string section(strategy.section);
  std::map<std::string, int, std::less<>> lines;
  for (const ConfigEntry& entry : map) {
    const std::string key = bare(strategy, entry.key);
    const std::string name = std::string(strategy.prefix) + key;
    const Option* option = find_option(strategy, name);
    const auto handed_on = strategy.hands_on_other_keys ? python_text(entry.value) : std::nullopt;
    if (option == nullptr && handed_on) {
      values[name] = *handed_on;
      continue;
    }
    if (option == nullptr) {
      notices.push_back(unknown_key(path, section, key, entry.line));
      continue;
    }
    const std::string known(option->flag.name);
    if (known != name) {
      notices.push_back(renamed_key(path, section + "." + key, entry.line, known));
    }
    if (const auto before = lines.find(known); before != lines.end()) {
      notices.push_back(repeated_key(path, section + "." + key, before->second, entry.line));
    }
    lines[known] = entry.line;
    values.erase(known);
    if (entry.value.is_null()) continue;
    if (auto value = value_in_file(*option, entry.value)) {
      values[known] = *std::move(value);
    } else {
      faults.add(Error(ErrorCode::kConfigInvalidValue,
                       place_of_line(path, entry.line) + ": " + section + "." + key + " is " +
                           shown(entry.value) + ", expected " + expected_value(*option),
                       "change line " + std::to_string(entry.line) + " of " + path));
    }
  }
}

}  // namespace accel::launcher
