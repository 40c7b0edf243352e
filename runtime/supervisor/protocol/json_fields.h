// JsonFields: reads the members of a JSON object into the members of a struct.
//
// Private to the supervisor's encodings. Every reader throws FieldError (never anything else) for a
// missing member or one of the wrong kind; the encoding's entry point turns it into an
// accel::Error.
#pragma once

#include <chrono>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/result.h>

#include "runtime/supervisor/protocol/json_bytes.h"

namespace accel::supervisor {

using Json = nlohmann::json;

struct FieldError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// ---- writing: to_field(value) gives the JSON of one value ----

inline Json to_field(const std::string& bytes) {
  return bytes_to_text(bytes);
}
inline Json to_field(bool value) {
  return value;
}
inline Json to_field(double value) {
  return value;
}

template <typename T>
requires std::is_integral_v<T> Json to_field(T value) {
  return value;
}

template <typename E>
requires std::is_enum_v<E> Json to_field(E value) {
  return static_cast<int>(value);
}

template <typename Rep, typename Period>
Json to_field(std::chrono::duration<Rep, Period> value) {
  return value.count();
}

template <typename T>
Json to_field(const std::vector<T>& values) {
  Json array = Json::array();
  for (const T& value : values) array.push_back(to_field(value));
  return array;
}

inline Json to_field(const std::map<std::string, std::string>& values) {
  Json object = Json::object();
  for (const auto& [name, value] : values) object[bytes_to_text(name)] = bytes_to_text(value);
  return object;
}

// ---- reading: from_field(json, out) ----

inline void from_field(const Json& json, std::string& out) {
  if (!json.is_string()) throw FieldError("is not a string");
  auto bytes = text_to_bytes(json.get_ref<const std::string&>());
  if (!bytes) throw FieldError("is not an encoded byte string");
  out = *std::move(bytes);
}

inline void from_field(const Json& json, bool& out) {
  if (!json.is_boolean()) throw FieldError("is not a boolean");
  out = json.get<bool>();
}

template <typename T>
requires(std::is_integral_v<T> && !std::is_same_v<T, bool>) void from_field(const Json& json,
                                                                            T& out) {
  using Limits = std::numeric_limits<T>;
  if (json.is_number_unsigned()) {
    const auto value = json.get<std::uint64_t>();
    if (value > static_cast<std::uint64_t>(Limits::max())) throw FieldError("is out of range");
    out = static_cast<T>(value);
  } else if (json.is_number_integer()) {
    const auto value = json.get<std::int64_t>();
    if (std::is_unsigned_v<T> || value < static_cast<std::int64_t>(Limits::min())) {
      throw FieldError("is out of range");
    }
    out = static_cast<T>(value);
  } else {
    throw FieldError("is not an integer");
  }
}

inline void from_field(const Json& json, double& out) {
  if (!json.is_number()) throw FieldError("is not a number");
  out = json.get<double>();
}

// Times are computed with in nanoseconds: what is added to a clock must have room there.
template <typename Rep, typename Period>
void from_field(const Json& json, std::chrono::duration<Rep, Period>& out) {
  using Time = std::chrono::duration<Rep, Period>;
  constexpr Rep kMost = std::chrono::duration_cast<Time>(std::chrono::hours(50 * 365 * 24)).count();
  Rep count{};
  from_field(json, count);
  if (count > kMost || count < -kMost) throw FieldError("is out of range");
  out = Time(count);
}

inline void from_field(const Json& json, std::map<std::string, std::string>& out) {
  if (!json.is_object()) throw FieldError("is not an object");
  for (const auto& [name, value] : json.items()) {
    auto key = text_to_bytes(name);
    if (!key) throw FieldError("has a key that is not an encoded byte string");
    from_field(value, out[*std::move(key)]);
  }
}

template <typename T>
void from_field(const Json& json, std::vector<T>& out) {
  if (!json.is_array()) throw FieldError("is not an array");
  for (const Json& item : json) from_field(item, out.emplace_back());
}

// The last enumerator bounds what is accepted.
template <typename E>
void from_enum_field(const Json& json, E& out, E last) {
  int value = 0;
  from_field(json, value);
  if (value < 0 || value > static_cast<int>(last)) throw FieldError("is not a known value");
  out = static_cast<E>(value);
}

template <typename E>
void from_enum_fields(const Json& json, std::vector<E>& out, E last) {
  if (!json.is_array()) throw FieldError("is not an array");
  for (const Json& item : json) from_enum_field(item, out.emplace_back(), last);
}

// The member `name` of `object`, read by `read(json)`; errors get the name in front.
template <typename Read>
void read_member(const Json& object, const char* name, Read&& read) {
  if (!object.is_object()) throw FieldError("is not an object");
  const auto found = object.find(name);
  if (found == object.end()) throw FieldError(std::string(name) + " is missing");
  try {
    read(*found);
  } catch (const FieldError& error) {
    throw FieldError(std::string(name) + " " + error.what());
  }
}

template <typename T>
void read_member(const Json& object, const char* name, T& out) {
  read_member(object, name, [&](const Json& json) { from_field(json, out); });
}

// A member that an older protocol did not have: `out` keeps its value when it is missing.
template <typename T>
void read_new_member(const Json& object, const char* name, T& out) {
  if (object.is_object() && !object.contains(name)) return;
  read_member(object, name, out);
}

// Parses `text` and runs `decode(json)`; any fault becomes kProtocol, naming `what`.
template <typename Decode>
auto decode_json(std::string_view text, const char* what, Decode&& decode)
    -> Result<std::invoke_result_t<Decode, const Json&>> {
  const Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return Error(ErrorCode::kProtocol, std::string(what) + " is not JSON");
  try {
    return decode(json);
  } catch (const FieldError& error) {
    return Error(ErrorCode::kProtocol, std::string(what) + ": " + error.what());
  }
}

}  // namespace accel::supervisor
