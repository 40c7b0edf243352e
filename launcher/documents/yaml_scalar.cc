// The implicit types of YAML 1.1 as PyYAML implements them, which differs from the specification in
// one place: an exponent of a float needs a sign and a dot (1e5 is text, 1.0e+5 a number).

#include "launcher/documents/yaml_scalar.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace accel::launcher {
namespace {

bool is_one_of(std::string_view text, std::initializer_list<std::string_view> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

bool consists_of(std::string_view text, std::string_view letters) {
  return text.find_first_not_of(letters) == std::string_view::npos;
}

std::string without_underscores(std::string_view text) {
  std::string digits(text);
  std::erase(digits, '_');
  return digits;
}

YamlScalar to_integer(std::string_view text, int base, bool is_negative) {
  const std::string digits = without_underscores(text);
  std::uint64_t magnitude = 0;
  const auto [end, failure] =
      std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  constexpr auto kMost = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (failure != std::errc() || magnitude > kMost) {
    double wide = 0;
    for (char c : digits) wide = wide * base + (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    return is_negative ? -wide : wide;
  }
  const auto value = static_cast<std::int64_t>(magnitude);
  return is_negative ? -value : value;
}

// "1:30" and "1:30.5": a first part of any size, then parts below 60.
std::optional<double> to_sexagesimal(std::string_view text) {
  double value = 0;
  bool is_first = true;
  while (true) {
    const size_t colon = std::min(text.find(':'), text.size());
    const bool is_last = colon == text.size();
    const std::string part = without_underscores(text.substr(0, colon));
    double number = 0;
    const auto [end, failure] = std::from_chars(part.data(), part.data() + part.size(), number);
    if (failure != std::errc() || end != part.data() + part.size()) return std::nullopt;
    if (!is_first && number >= 60) return std::nullopt;
    value = value * 60 + number;
    if (is_last) return value;
    text.remove_prefix(colon + 1);
    is_first = false;
  }
}

std::optional<YamlScalar> as_sexagesimal(std::string_view body, bool is_negative) {
  if (body.find(':') == std::string_view::npos || !consists_of(body, "0123456789_:.")) return {};
  const size_t dot = body.find('.');
  const bool is_float = dot != std::string_view::npos;
  const std::string_view whole = body.substr(0, dot);
  // Every part after the first has one or two digits; the first starts with 1-9 (a float's with
  // 0-9).
  size_t start = 0;
  for (size_t i = 0; i <= whole.size(); ++i) {
    if (i < whole.size() && whole[i] != ':') continue;
    const std::string_view part = whole.substr(start, i - start);
    const bool is_first = start == 0;
    if (part.empty() || (!is_first && (part.size() > 2 || !consists_of(part, "0123456789"))))
      return {};
    if (is_first && (part[0] == '_' || (!is_float && part[0] == '0'))) return {};
    start = i + 1;
  }
  if (is_float && !consists_of(body.substr(dot + 1), "0123456789_")) return {};
  const std::optional<double> value = to_sexagesimal(body);
  if (!value) return {};
  const double signed_value = is_negative ? -*value : *value;
  constexpr double kMostExact = 9007199254740992.0;  // beyond it a double skips whole numbers
  if (is_float || *value > kMostExact) return signed_value;
  return static_cast<std::int64_t>(signed_value);
}

std::optional<YamlScalar> as_integer(std::string_view body, bool is_negative) {
  if (body.starts_with("0b") && body.size() > 2 && consists_of(body.substr(2), "01_")) {
    return to_integer(body.substr(2), 2, is_negative);
  }
  if (body.starts_with("0x") && body.size() > 2 &&
      consists_of(body.substr(2), "0123456789abcdefABCDEF_")) {
    return to_integer(body.substr(2), 16, is_negative);
  }
  if (body == "0") return std::int64_t{0};
  if (body.starts_with('0') && consists_of(body.substr(1), "01234567_")) {
    return to_integer(body, 8, is_negative);
  }
  if (body[0] >= '1' && body[0] <= '9' && consists_of(body, "0123456789_")) {
    return to_integer(body, 10, is_negative);
  }
  return std::nullopt;
}

std::optional<YamlScalar> as_float(std::string_view body, bool has_sign, bool is_negative) {
  const double sign = is_negative ? -1 : 1;
  if (is_one_of(body, {".inf", ".Inf", ".INF"})) {
    return sign * std::numeric_limits<double>::infinity();
  }
  if (!has_sign && is_one_of(body, {".nan", ".NaN", ".NAN"})) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const size_t dot = body.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  const std::string_view whole = body.substr(0, dot);
  std::string_view fraction = body.substr(dot + 1);
  std::string_view exponent;
  if (const size_t e = fraction.find_first_of("eE"); e != std::string_view::npos) {
    exponent = fraction.substr(e + 1);
    fraction = fraction.substr(0, e);
    const bool is_signed = exponent.starts_with('+') || exponent.starts_with('-');
    if (!is_signed || exponent.size() < 2 || !consists_of(exponent.substr(1), "0123456789"))
      return {};
  }
  constexpr std::string_view kDigits = "0123456789_";
  if (!consists_of(whole, kDigits) || !consists_of(fraction, kDigits)) return std::nullopt;
  // ".5" takes no sign, and a digit must come first on either side of the dot.
  const bool starts_well =
      whole.empty() ? !has_sign && !fraction.empty() && fraction[0] != '_' : whole[0] != '_';
  if (!starts_well) return std::nullopt;
  std::string digits = without_underscores(body);
  double value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return sign * value;
}

}  // namespace

YamlScalar resolve_yaml_scalar(std::string_view text) {
  if (text.empty() || is_one_of(text, {"~", "null", "Null", "NULL"})) return YamlNull{};
  if (is_one_of(text, {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"})) return true;
  if (is_one_of(text, {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}))
    return false;

  const bool has_sign = text[0] == '+' || text[0] == '-';
  const bool is_negative = text[0] == '-';
  const std::string_view body = has_sign ? text.substr(1) : text;
  if (body.empty()) return YamlText{};
  if (std::optional<YamlScalar> value = as_integer(body, is_negative)) return *value;
  if (std::optional<YamlScalar> value = as_sexagesimal(body, is_negative)) return *value;
  if (std::optional<YamlScalar> value = as_float(body, has_sign, is_negative)) return *value;
  return YamlText{};
}

}  // namespace accel::launcher
