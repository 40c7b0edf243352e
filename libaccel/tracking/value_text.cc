#include "libaccel/tracking/value_text.h"

#include <cmath>
#include <cstdint>
#include <variant>

#include <nlohmann/json.hpp>

namespace accel::tracking {
namespace {

std::string json_string(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string double_text(double value, NonFinite non_finite) {
  if (std::isfinite(value)) return nlohmann::json(value).dump();
  if (non_finite == NonFinite::kNull) return "null";
  if (std::isnan(value)) return "NaN";
  return value > 0 ? "Infinity" : "-Infinity";
}

struct JsonWriter {
  NonFinite non_finite;

  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(std::int64_t value) const { return std::to_string(value); }
  std::string operator()(double value) const { return double_text(value, non_finite); }
  std::string operator()(const std::string& text) const { return json_string(text); }
  std::string operator()(const TrackerList& list) const {
    std::string text = "[";
    for (const TrackerValue& value : list) {
      if (&value != &list.front()) text += ",";
      text += json_text(value, non_finite);
    }
    return text + "]";
  }
  std::string operator()(const TrackerDict& dictionary) const {
    return "{" + json_members(dictionary, non_finite) + "}";
  }
};

}  // namespace

std::string json_text(const TrackerValue& value, NonFinite non_finite) {
  return std::visit(JsonWriter{non_finite}, value.data());
}

std::string json_members(const TrackerDict& values, NonFinite non_finite) {
  std::string text;
  for (const auto& [name, value] : values) {
    if (!text.empty()) text += ",";
    text += json_string(name) + ":" + json_text(value, non_finite);
  }
  return text;
}

std::string csv_quoted(std::string_view text) {
  if (text.find_first_of(",\"\r\n") == std::string_view::npos) return std::string(text);
  std::string cell = "\"";
  for (const char letter : text) {
    if (letter == '"') cell += '"';
    cell += letter;
  }
  return cell + "\"";
}

std::string csv_cell(const TrackerValue& value) {
  if (std::holds_alternative<std::monostate>(value.data())) return "";
  if (value.text() != nullptr) return csv_quoted(*value.text());
  if (const auto* number = std::get_if<double>(&value.data()); number && !std::isfinite(*number))
    return std::isnan(*number) ? "nan" : *number > 0 ? "inf" : "-inf";
  return csv_quoted(json_text(value));
}

std::string yaml_lines(const TrackerDict& values) {
  std::string text;
  for (const auto& [name, value] : values) {
    const auto* number = std::get_if<double>(&value.data());
    const std::string shown = number == nullptr || std::isfinite(*number) ? json_text(value)
                              : std::isnan(*number)                       ? ".nan"
                              : *number > 0                               ? ".inf"
                                                                          : "-.inf";
    text += json_string(name) + ": " + shown + "\n";
  }
  return text;
}

}  // namespace accel::tracking
