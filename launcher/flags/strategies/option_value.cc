#include "launcher/flags/strategies/option_value.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <accel/env_contract.h>

#include "launcher/text/choice_list.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

constexpr std::int64_t kMostInteger = 1'000'000'000'000;

// One of the option's words, in the table's spelling.
std::optional<std::string> word_of(const Option& option, std::string_view text) {
  const auto word = find_choice(option.flag.choices, text);
  return word ? std::optional(std::string(*word)) : std::nullopt;
}

std::optional<std::string> integer_text(const Option& option, std::int64_t number) {
  if (number < option.least || number > kMostInteger) return std::nullopt;
  return std::to_string(number);
}

const char* python_truth(bool truth) {
  return truth ? "True" : "False";
}

std::string truth_text(const Option& option, bool truth) {
  switch (option.truth) {
    case TruthForm::kLower:
      return truth ? "true" : "false";
    case TruthForm::kDigit:
      return truth ? "1" : "0";
    case TruthForm::kPython:
    case TruthForm::kTyped:
      break;
  }
  return python_truth(truth);
}

// What a text says of an option, from a flag or between quotes in a file.
std::optional<std::string> value_of_text(const Option& option, std::string_view text) {
  switch (option.flag.kind) {
    case FlagKind::kSwitch:
    case FlagKind::kBool: {
      const Result<bool> truth = parse_env_bool(option.flag.name, text);
      if (!truth) return std::nullopt;
      if (option.truth == TruthForm::kTyped) return std::string(text);
      return truth_text(option, *truth);
    }
    case FlagKind::kInteger:
      if (const auto number = number_of<std::int64_t>(text)) return integer_text(option, *number);
      return word_of(option, text);
    case FlagKind::kNumber:
      if (const auto number = number_of<double>(text)) {
        if (!std::isfinite(*number) || *number < option.least) return std::nullopt;
        return python_number(*number);
      }
      return word_of(option, text);
    case FlagKind::kChoice: {
      auto word = word_of(option, text);
      return word && option.truth == TruthForm::kTyped ? std::string(text) : word;
    }
    case FlagKind::kSeconds:
    case FlagKind::kText:
      break;
  }
  return std::string(text);
}

// And no larger than a double counts exactly.
bool is_whole(double number) {
  constexpr double kMostExact = 9007199254740992.0;
  return std::abs(number) <= kMostExact && std::trunc(number) == number;
}

std::optional<std::string> comma_list(const ConfigValue::List& list) {
  std::string text;
  for (const ConfigValue& value : list) {
    const auto part = python_text(value);
    if (!part) return std::nullopt;
    text += (text.empty() ? "" : ",") + *part;
  }
  return text;
}

std::optional<std::string> value_of_truth(const Option& option, bool truth) {
  switch (option.flag.kind) {
    case FlagKind::kSwitch:
    case FlagKind::kBool:
      return option.truth == TruthForm::kLower ? truth_text(option, truth) : python_truth(truth);
    case FlagKind::kChoice:  // "false" also where YAML 1.1 takes an unquoted no for it
      if (auto word = word_of(option, truth ? "true" : "false")) return word;
      return truth ? std::nullopt : word_of(option, "no");
    case FlagKind::kText:
      return python_truth(truth);
    default:
      return std::nullopt;
  }
}

std::optional<std::string> unlowered_value(const Option& option, const ConfigValue& value) {
  if (const auto* truth = std::get_if<bool>(&value.data)) return value_of_truth(option, *truth);
  if (const auto* number = std::get_if<std::int64_t>(&value.data)) {
    switch (option.flag.kind) {
      case FlagKind::kInteger:
        return integer_text(option, *number);
      case FlagKind::kNumber:
        return *number >= option.least ? std::optional(std::to_string(*number)) : std::nullopt;
      default:
        return value_of_text(option, std::to_string(*number));
    }
  }
  if (const auto* number = std::get_if<double>(&value.data)) {
    // Older versions of the peer wrote 100000000.0 for fsdp_min_num_params.
    if (option.flag.kind == FlagKind::kInteger && is_whole(*number))
      return integer_text(option, static_cast<std::int64_t>(*number));
    const bool takes_it =
        option.flag.kind == FlagKind::kNumber || option.flag.kind == FlagKind::kText;
    return takes_it ? value_of_text(option, python_number(*number)) : std::nullopt;
  }
  if (const auto* text = std::get_if<std::string>(&value.data)) return value_of_text(option, *text);
  const auto* list = std::get_if<ConfigValue::List>(&value.data);
  return list != nullptr && option.flag.kind == FlagKind::kText ? comma_list(*list) : std::nullopt;
}

std::optional<std::string> finished(const Option& option, std::optional<std::string> value) {
  if (value && option.is_lowered) return lowercase(*value);
  return value;
}

}  // namespace

std::optional<std::string> value_of_flag(const Option& option, std::string_view text) {
  return finished(option, value_of_text(option, text));
}

std::optional<std::string> value_in_file(const Option& option, const ConfigValue& value) {
  return finished(option, unlowered_value(option, value));
}

std::string expected_value(const Option& option) {
  const std::string words = listed_choices(option.flag.choices);
  const std::string others = words.empty() ? "" : ", or " + words;
  switch (option.flag.kind) {
    case FlagKind::kSwitch:
    case FlagKind::kBool:
      return "true or false";
    case FlagKind::kInteger:
      return "a whole number of at least " + std::to_string(option.least) + others;
    case FlagKind::kNumber:
      return "a number of at least " + std::to_string(option.least) + others;
    case FlagKind::kChoice:
      return "one of " + words;
    default:
      return "text";
  }
}

std::optional<std::string> python_text(const ConfigValue& value) {
  if (const auto* truth = std::get_if<bool>(&value.data)) return python_truth(*truth);
  if (const auto* whole = std::get_if<std::int64_t>(&value.data)) return std::to_string(*whole);
  if (const auto* number = std::get_if<double>(&value.data)) return python_number(*number);
  if (const auto* text = std::get_if<std::string>(&value.data)) return *text;
  return std::nullopt;
}

std::string python_number(double number) {
  if (!std::isfinite(number)) return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
  constexpr int kFewestScientific = -4;
  constexpr int kMostFixed = 16;
  char buffer[64];
  const auto in_form = [&](std::chars_format form) {
    const auto end = std::to_chars(std::begin(buffer), std::end(buffer), number, form).ptr;
    return std::string(std::begin(buffer), end);
  };
  std::string scientific = in_form(std::chars_format::scientific);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < kFewestScientific || exponent >= kMostFixed) return scientific;
  std::string fixed = in_form(std::chars_format::fixed);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

}  // namespace accel::launcher
