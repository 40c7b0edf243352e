#include "launcher/start/sagemaker/hyperparameters.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "runtime/text/number_text.h"

namespace accel::launcher {
namespace {

// Most whole numbers that a double tells apart; above it stays a fraction with an exponent.
constexpr double kMostExact = 9007199254740992.0;

// "--some-key" -> "some_key".
std::string key_of(std::string_view flag) {
  std::string key(flag.substr(std::min(flag.find_first_not_of('-'), flag.size())));
  std::replace(key.begin(), key.end(), '-', '_');
  return key;
}

Error valueless(const std::string& flag) {
  return Error(ErrorCode::kUsage,
               "SageMaker doesn't support argparse actions for `store_true` or `store_false`. "
               "Please define explicit types (" +
                   flag + " has no value)",
               "give " + flag + " a value, as in " + flag + " True");
}

}  // namespace

nlohmann::json typed_value(std::string_view text) {
  if (text == "True") return true;
  if (text == "False") return false;
  const auto number = signed_number<double>(text);  // as Python's float() takes it
  if (!number || !std::isfinite(*number)) return std::string(text);
  const bool is_whole = std::floor(*number) == *number && std::abs(*number) <= kMostExact;
  if (is_whole) return static_cast<std::int64_t>(*number);
  return *number;
}

Result<nlohmann::json> hyperparameters_of(const std::vector<std::string>& arguments) {
  nlohmann::json all = nlohmann::json::object();
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (!word.starts_with('-')) {
      return Error(ErrorCode::kUsage,
                   "'" + word + "' follows no flag, and SageMaker hands on flags with a value each",
                   "put a flag before it, as in --name " + word);
    }
    const size_t equals = word.find('=');
    const bool is_joined = equals != std::string::npos;
    if (!is_joined && (i + 1 == arguments.size() || arguments[i + 1].starts_with('-')))
      return valueless(word);
    const std::string key = key_of(std::string_view(word).substr(0, equals));
    if (all.contains(key)) {
      return Error(ErrorCode::kUsage,
                   "--" + key + " is given twice, and SageMaker hands on one value",
                   "leave one of them out");
    }
    all[key] = typed_value(is_joined ? std::string_view(word).substr(equals + 1)
                                     : std::string_view(arguments[++i]));
  }
  return all;
}

}  // namespace accel::launcher
