// ConfigJson: values of a configuration file as JSON.
//
// Threads:  pure functions.
#pragma once

#include <type_traits>
#include <variant>

#include <nlohmann/json.hpp>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

// Json: nlohmann::ordered_json keeps the order of the file, nlohmann::json sorts. Where a key is there twice, the last value
// counts.
template <typename Json>
[[nodiscard]] Json json_of(const ConfigValue& value) {
  return std::visit(
      [](const auto& data) -> Json {
        using Data = std::decay_t<decltype(data)>;
        if constexpr (std::is_same_v<Data, ConfigValue::Null>) {
          return nullptr;
        } else if constexpr (std::is_same_v<Data, ConfigValue::Map>) {
          Json object = Json::object();
          for (const ConfigEntry& entry : data) object[entry.key] = json_of<Json>(entry.value);
          return object;
        } else if constexpr (std::is_same_v<Data, ConfigValue::List>) {
          Json array = Json::array();
          for (const ConfigValue& item : data) array.push_back(json_of<Json>(item));
          return array;
        } else {
          return data;
        }
      },
      value.data);
}

}  // namespace accel::launcher
