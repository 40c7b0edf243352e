// ObjectCodec: plain values as bytes, for the collectives that move objects instead of tensors.
//
// Covers numbers, bool, enumerations, std::string, at::Tensor (on the CPU), vector, array, map,
// unordered_map, pair, tuple, optional, variant, torch::data::Example, and structs that list their
// members with fields() (see nested.h). Any other type needs a specialisation:
//
//   template <>
//   struct accel::ObjectCodec<Mine> {
//     static void write(ObjectWriter& out, const Mine& value) { out.write(value.a()); }
//     static Mine read(ObjectReader& in) { return Mine(in.read<int>()); }
//   };
//
// The bytes are for the ranks of one job, not for files: numbers are in memory order, and both
// sides must have the same types. A tag of the type comes first, so another type is an error.
//
// Errors    reading throws kProtocol for bytes that are too short or of another type.
// Threads:  no state.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>

namespace accel {

class ACCEL_EXPORT ObjectWriter {
 public:
  void write_bytes(const void* data, std::size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  void write_size(std::size_t size) {
    const auto value = static_cast<std::uint64_t>(size);
    write_bytes(&value, sizeof value);
  }
  void write_tensor(const at::Tensor& tensor);
  template <typename T>
  void write(const T& value);

  [[nodiscard]] std::string take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class ACCEL_EXPORT ObjectReader {
 public:
  explicit ObjectReader(std::string_view bytes) : bytes_(bytes) {}

  std::string_view read_bytes(std::size_t size);
  // The number of elements that follow, each of at least `element_size` bytes.
  std::size_t read_size(std::size_t element_size);
  at::Tensor read_tensor();
  template <typename T>
  T read();

  // Throws kProtocol unless everything has been read.
  void finish() const;

 private:
  std::string_view bytes_;
};

template <typename T>
struct ObjectCodec;

namespace detail {

ACCEL_EXPORT void check_type_tag(std::string_view expected, std::string_view found);
[[noreturn]] ACCEL_EXPORT void throw_bad_alternative(std::size_t index);

template <typename T>
void write_elements(ObjectWriter& out, const T& values) {
  for (const auto& value : values) out.write(static_cast<const typename T::value_type&>(value));
}

template <std::size_t I, typename Variant>
Variant read_alternative(ObjectReader& in, std::size_t index) {
  if constexpr (I == std::variant_size_v<Variant>) {
    throw_bad_alternative(index);
  } else {
    if (index == I)
      return Variant(std::in_place_index<I>, in.read<std::variant_alternative_t<I, Variant>>());
    return read_alternative<I + 1, Variant>(in, index);
  }
}

}  // namespace detail

template <typename T>
requires(std::is_arithmetic_v<T> || std::is_enum_v<T>) struct ObjectCodec<T> {
  static void write(ObjectWriter& out, T value) { out.write_bytes(&value, sizeof value); }
  static T read(ObjectReader& in) {
    T value;
    std::memcpy(&value, in.read_bytes(sizeof value).data(), sizeof value);
    return value;
  }
};

template <>
struct ObjectCodec<std::string> {
  static void write(ObjectWriter& out, const std::string& value) {
    out.write_size(value.size());
    out.write_bytes(value.data(), value.size());
  }
  static std::string read(ObjectReader& in) { return std::string(in.read_bytes(in.read_size(1))); }
};

template <>
struct ObjectCodec<at::Tensor> {
  static void write(ObjectWriter& out, const at::Tensor& value) { out.write_tensor(value); }
  static at::Tensor read(ObjectReader& in) { return in.read_tensor(); }
};

template <>
struct ObjectCodec<std::monostate> {
  static void write(ObjectWriter&, std::monostate) {}
  static std::monostate read(ObjectReader&) { return {}; }
};

template <typename T>
struct ObjectCodec<std::vector<T>> {
  static void write(ObjectWriter& out, const std::vector<T>& values) {
    out.write_size(values.size());
    detail::write_elements(out, values);
  }
  static std::vector<T> read(ObjectReader& in) {
    std::vector<T> values;
    for (std::size_t left = in.read_size(0); left > 0; --left) values.push_back(in.read<T>());
    return values;
  }
};

template <typename T, std::size_t N>
struct ObjectCodec<std::array<T, N>> {
  static void write(ObjectWriter& out, const std::array<T, N>& values) {
    detail::write_elements(out, values);
  }
  static std::array<T, N> read(ObjectReader& in) {
    std::array<T, N> values;
    for (T& value : values) value = in.read<T>();
    return values;
  }
};

template <typename T>
requires(detail::is_map<T>) struct ObjectCodec<T> {
  static void write(ObjectWriter& out, const T& values) {
    out.write_size(values.size());
    for (const auto& [key, value] : values) {
      out.write(key);
      out.write(value);
    }
  }
  static T read(ObjectReader& in) {
    T values;
    for (std::size_t left = in.read_size(0); left > 0; --left) {
      auto key = in.read<typename T::key_type>();
      values.emplace(std::move(key), in.read<typename T::mapped_type>());
    }
    return values;
  }
};

template <typename First, typename Second>
struct ObjectCodec<std::pair<First, Second>> {
  static void write(ObjectWriter& out, const std::pair<First, Second>& value) {
    out.write(value.first);
    out.write(value.second);
  }
  static std::pair<First, Second> read(ObjectReader& in) {
    return std::pair<First, Second>{in.read<First>(), in.read<Second>()};
  }
};

template <typename... Parts>
struct ObjectCodec<std::tuple<Parts...>> {
  static void write(ObjectWriter& out, const std::tuple<Parts...>& value) {
    std::apply([&](const auto&... parts) { (out.write(parts), ...); }, value);
  }
  static std::tuple<Parts...> read(ObjectReader& in) {
    return std::tuple<Parts...>{in.read<Parts>()...};
  }
};

template <typename T>
struct ObjectCodec<std::optional<T>> {
  static void write(ObjectWriter& out, const std::optional<T>& value) {
    out.write(value.has_value());
    if (value) out.write(*value);
  }
  static std::optional<T> read(ObjectReader& in) {
    return in.read<bool>() ? std::optional<T>(in.read<T>()) : std::nullopt;
  }
};

template <typename... Parts>
struct ObjectCodec<std::variant<Parts...>> {
  static void write(ObjectWriter& out, const std::variant<Parts...>& value) {
    out.write_size(value.index());
    std::visit([&](const auto& part) { out.write(part); }, value);
  }
  static std::variant<Parts...> read(ObjectReader& in) {
    return detail::read_alternative<0, std::variant<Parts...>>(in, in.read_size(0));
  }
};

template <typename T>
requires(HasFields<T> || ExampleLike<T>) struct ObjectCodec<T> {
  static void write(ObjectWriter& out, const T& value) {
    std::apply([&](auto... member) { (out.write(value.*member), ...); }, detail::fields_of<T>());
  }
  static T read(ObjectReader& in) {
    T value;
    std::apply(
        [&](auto... member) {
          ((value.*member = in.read<std::remove_cvref_t<decltype(value.*member)>>()), ...);
        },
        detail::fields_of<T>());
    return value;
  }
};

template <typename T>
void ObjectWriter::write(const T& value) {
  ObjectCodec<T>::write(*this, value);
}

template <typename T>
T ObjectReader::read() {
  return ObjectCodec<T>::read(*this);
}

// A value with the tag of its type, and back.
template <typename T>
std::string encode_object(const T& value) {
  ObjectWriter out;
  out.write(std::string(typeid(T).name()));
  out.write(value);
  return std::move(out).take();
}
template <typename T>
T decode_object(std::string_view bytes) {
  ObjectReader in(bytes);
  detail::check_type_tag(typeid(T).name(), in.read<std::string>());
  T value = in.read<T>();
  in.finish();
  return value;
}

}  // namespace accel
