// Plain values to and from JSON.

#include "libaccel/engine/checkpoint/files/state_files.h"

#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

namespace accel::checkpoint {
namespace {

using nlohmann::json;

json encode_double(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

json encode_value(const StateValue& value) {
  return std::visit(
      [](const auto& typed) -> json {
        using T = std::decay_t<decltype(typed)>;
        if constexpr (std::is_same_v<T, double>) {
          return std::isfinite(typed) ? json(typed) : json{{"double", encode_double(typed)}};
        } else if constexpr (std::is_same_v<T, std::vector<std::int64_t>>) {
          return {{"ints", typed}};
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          json list = json::array();
          for (const double number : typed) list.push_back(encode_double(number));
          return {{"doubles", std::move(list)}};
        } else {
          return typed;
        }
      },
      value);
}

double decode_double(const json& value) {
  if (value.is_number()) return value.get<double>();
  const auto& text = value.get_ref<const std::string&>();
  if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
  if (text == "inf") return std::numeric_limits<double>::infinity();
  if (text == "-inf") return -std::numeric_limits<double>::infinity();
  throw Error(ErrorCode::kCheckpointMismatch, "\"" + text + "\" is not a number");
}

StateValue decode_value(const std::string& key, const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (value.is_number_float()) return value.get<double>();
  if (value.is_string()) return value.get<std::string>();
  if (value.contains("double")) return decode_double(value.at("double"));
  if (value.contains("ints")) return value.at("ints").get<std::vector<std::int64_t>>();
  if (value.contains("doubles")) {
    std::vector<double> numbers;
    for (const json& number : value.at("doubles")) numbers.push_back(decode_double(number));
    return numbers;
  }
  throw Error(ErrorCode::kCheckpointMismatch, "the value of \"" + key + "\" is of no known type");
}

}  // namespace

std::string encode_state(const StateDict& state) {
  json values = json::object();
  for (const auto& [key, value] : state.values) values[key] = encode_value(value);
  const json root = {{"values", std::move(values)}, {"has_tensors", !state.tensors.empty()}};
  try {
    return root.dump(2) + "\n";
  } catch (const json::exception&) {
    throw Error(ErrorCode::kInvalidArgument,
                "a state_dict() holds a string that is not UTF-8",
                "keep bytes in a uint8 tensor instead");
  }
}

DecodedState decode_state(std::string_view text) {
  try {
    const json root = json::parse(text);
    DecodedState decoded{.has_tensors = root.at("has_tensors").get<bool>()};
    for (const auto& [key, value] : root.at("values").items()) {
      decoded.state.values.emplace(key, decode_value(key, value));
    }
    return decoded;
  } catch (const json::exception& error) {
    throw Error(ErrorCode::kCheckpointMismatch,
                std::string("the saved state is not valid: ") + error.what());
  }
}

}  // namespace accel::checkpoint
