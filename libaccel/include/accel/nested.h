// Nested: data that can hold tensors, and functions that visit it.
//
// Nested data is a tensor, or a vector, array, map, unordered_map, tuple, pair, optional or variant
// of nested data, or a struct that lists its members:
//
//   struct Batch {
//     at::Tensor images, labels;
//     static constexpr auto fields() { return std::make_tuple(&Batch::images, &Batch::labels); }
//   };
//
// torch::data::Example needs no list. Every other type is a leaf that passes through unchanged, and
// so does an undefined tensor. Tensors are visited in the order of the members, maps in the order
// of their keys (unordered maps too: it must be the same on every rank).
//
// Threads:  no state. Cost: none beyond the copies of the containers; tensors are shared, not
// copied.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

// A struct with the static function fields(), which returns a tuple of pointers to members.
template <typename T>
concept HasFields = requires {
  T::fields();
};

// A pair of data and target, as torch::data::Example.
template <typename T>
concept ExampleLike = !HasFields<T> && std::is_member_object_pointer_v<decltype(&T::data)> &&
                      std::is_member_object_pointer_v<decltype(&T::target)>;

namespace detail {

template <typename T, template <typename...> class Container>
inline constexpr bool is_a = false;
template <template <typename...> class Container, typename... Args>
inline constexpr bool is_a<Container<Args...>, Container> = true;

template <typename T>
inline constexpr bool is_array = false;
template <typename T, std::size_t N>
inline constexpr bool is_array<std::array<T, N>> = true;

template <typename T>
inline constexpr bool is_sequence = is_a<T, std::vector> || is_array<T>;
template <typename T>
inline constexpr bool is_map = is_a<T, std::map> || is_a<T, std::unordered_map>;
template <typename T>
inline constexpr bool is_product = is_a<T, std::tuple> || is_a<T, std::pair>;

template <typename T>
constexpr auto fields_of() {
  if constexpr (HasFields<T>) {
    return T::fields();
  } else {
    return std::make_tuple(&T::data, &T::target);
  }
}

template <typename T, typename Leaf>
struct Contains : std::is_same<T, Leaf> {};
template <typename T, typename Leaf>
requires(is_sequence<T>) struct Contains<T, Leaf> : Contains<typename T::value_type, Leaf> {
};
template <typename T, typename Leaf>
requires(is_a<T, std::optional>) struct Contains<T, Leaf> : Contains<typename T::value_type, Leaf> {
};
template <typename T, typename Leaf>
requires(is_map<T>) struct Contains<T, Leaf> : Contains<typename T::mapped_type, Leaf> {
};
template <typename... Parts, typename Leaf>
struct Contains<std::tuple<Parts...>, Leaf> : std::disjunction<Contains<Parts, Leaf>...> {};
template <typename First, typename Second, typename Leaf>
struct Contains<std::pair<First, Second>, Leaf>
    : std::disjunction<Contains<First, Leaf>, Contains<Second, Leaf>> {};
template <typename... Parts, typename Leaf>
struct Contains<std::variant<Parts...>, Leaf> : std::disjunction<Contains<Parts, Leaf>...> {};
template <typename T, typename Member>
using MemberType = std::remove_cvref_t<decltype(std::declval<T&>().*std::declval<Member>())>;
template <typename T, typename Leaf, typename Tuple>
struct AnyMember;
template <typename T, typename Leaf, typename... Members>
struct AnyMember<T, Leaf, std::tuple<Members...>>
    : std::disjunction<Contains<MemberType<T, Members>, Leaf>...> {};
template <typename T, typename Leaf>
requires(HasFields<T> || ExampleLike<T>) struct Contains<T, Leaf>
    : AnyMember<T, Leaf, decltype(fields_of<T>())> {
};

// The entries of a map in the order of the keys, for each kind of map.
template <typename Map>
std::vector<typename Map::const_pointer> sorted_entries(const Map& data) {
  std::vector<typename Map::const_pointer> entries;
  entries.reserve(data.size());
  for (const auto& entry : data) entries.push_back(&entry);
  if constexpr (is_a<Map, std::unordered_map>) {
    std::sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
      return a->first < b->first;
    });
  }
  return entries;
}

}  // namespace detail

// Whether the type can hold tensors.
template <typename T>
concept TensorNested = detail::Contains<std::remove_cvref_t<T>, at::Tensor>::value;

namespace detail {

// Whether T has only visible parts: a tensor, a number, a text, or data made of these.
template <typename T>
struct IsNested : std::bool_constant<std::is_same_v<T, at::Tensor> || std::is_arithmetic_v<T> ||
                                     std::is_enum_v<T> || std::is_same_v<T, std::string> ||
                                     std::is_same_v<T, std::monostate>> {};
template <typename T>
requires(is_sequence<T> || is_a<T, std::optional>) struct IsNested<T>
    : IsNested<typename T::value_type> {
};
template <typename T>
requires(is_map<T>) struct IsNested<T> : IsNested<typename T::mapped_type> {
};
template <typename... Parts>
struct IsNested<std::tuple<Parts...>> : std::conjunction<IsNested<Parts>...> {};
template <typename First, typename Second>
struct IsNested<std::pair<First, Second>> : std::conjunction<IsNested<First>, IsNested<Second>> {};
template <typename... Parts>
struct IsNested<std::variant<Parts...>> : std::conjunction<IsNested<Parts>...> {};
template <typename T, typename Tuple>
struct AllMembers;
template <typename T, typename... Members>
struct AllMembers<T, std::tuple<Members...>>
    : std::conjunction<IsNested<MemberType<T, Members>>...> {};
template <typename T>
requires(HasFields<T> || ExampleLike<T>) struct IsNested<T>
    : AllMembers<T, decltype(fields_of<T>())> {
};

}  // namespace detail

// Only nested data: no leaf has a class that could hide tensors.
template <typename T>
concept Nested = detail::IsNested<std::remove_cvref_t<T>>::value;

// Calls visit(leaf) for every Leaf inside `data`, in order.
template <typename Leaf, typename T, typename F>
void for_each_leaf(const T& data, F&& visit) {
  using namespace detail;
  if constexpr (!Contains<T, Leaf>::value) {
    return;
  } else if constexpr (std::is_same_v<T, Leaf>) {
    visit(data);
  } else if constexpr (is_sequence<T>) {
    for (const auto& element : data) for_each_leaf<Leaf>(element, visit);
  } else if constexpr (is_map<T>) {
    for (const auto* entry : sorted_entries(data)) for_each_leaf<Leaf>(entry->second, visit);
  } else if constexpr (is_product<T>) {
    std::apply([&](const auto&... parts) { (for_each_leaf<Leaf>(parts, visit), ...); }, data);
  } else if constexpr (is_a<T, std::optional>) {
    if (data) for_each_leaf<Leaf>(*data, visit);
  } else if constexpr (is_a<T, std::variant>) {
    std::visit([&](const auto& value) { for_each_leaf<Leaf>(value, visit); }, data);
  } else {
    std::apply([&](auto... member) { (for_each_leaf<Leaf>(data.*member, visit), ...); },
               fields_of<T>());
  }
}

// The same structure with apply(leaf) in place of every Leaf, called in order. Structs with
// fields() need an apply() that returns a Leaf; the containers take any type. When apply has a
// member skips(key), map entries for which it is true do not change.
template <typename Leaf, typename T, typename F>
auto map_leaves(const T& data, F&& apply);

namespace detail {

template <typename Leaf, typename T, typename F>
using Mapped = decltype(map_leaves<Leaf>(std::declval<const T&>(), std::declval<F&>()));

template <typename Leaf, typename T, std::size_t N, typename F, std::size_t... I>
auto map_array(const std::array<T, N>& data, F& apply, std::index_sequence<I...>) {
  return std::array<Mapped<Leaf, T, F>, N>{map_leaves<Leaf>(data[I], apply)...};
}

template <typename Leaf, typename F, typename... Parts, std::size_t... I>
auto map_variant(const std::variant<Parts...>& data, F& apply, std::index_sequence<I...>) {
  using Result = std::variant<Mapped<Leaf, Parts, F>...>;
  std::optional<Result> result;
  const auto take = [&]<std::size_t J>(std::integral_constant<std::size_t, J>) {
    if (data.index() == J)
      result.emplace(std::in_place_index<J>, map_leaves<Leaf>(std::get<J>(data), apply));
  };
  (take(std::integral_constant<std::size_t, I>{}), ...);
  return *std::move(result);
}

template <typename Leaf, typename Map, typename F>
auto map_values(const Map& data, F& apply) {
  using Value = Mapped<Leaf, typename Map::mapped_type, F>;
  using Key = typename Map::key_type;
  std::conditional_t<is_a<Map, std::map>, std::map<Key, Value>, std::unordered_map<Key, Value>>
      result;
  for (const auto* entry : sorted_entries(data)) {
    if constexpr (requires { apply.skips(entry->first); }) {
      if (apply.skips(entry->first)) {
        result.emplace(entry->first, entry->second);
        continue;
      }
    }
    result.emplace(entry->first, map_leaves<Leaf>(entry->second, apply));
  }
  return result;
}

}  // namespace detail

template <typename Leaf, typename T, typename F>
auto map_leaves(const T& data, F&& apply) {
  using namespace detail;
  if constexpr (!Contains<T, Leaf>::value) {
    return data;
  } else if constexpr (std::is_same_v<T, Leaf>) {
    return apply(data);
  } else if constexpr (is_a<T, std::vector>) {
    std::vector<Mapped<Leaf, typename T::value_type, F>> result;
    result.reserve(data.size());
    for (const auto& element : data) result.push_back(map_leaves<Leaf>(element, apply));
    return result;
  } else if constexpr (is_array<T>) {
    return map_array<Leaf>(data, apply, std::make_index_sequence<std::tuple_size_v<T>>());
  } else if constexpr (is_map<T>) {
    return map_values<Leaf>(data, apply);
  } else if constexpr (is_a<T, std::tuple>) {
    return std::apply(
        [&]<typename... Parts>(const Parts&... parts) {
          return std::tuple<Mapped<Leaf, Parts, F>...>{map_leaves<Leaf>(parts, apply)...};
        },
        data);
  } else if constexpr (is_a<T, std::pair>) {
    using First = Mapped<Leaf, typename T::first_type, F>;
    using Second = Mapped<Leaf, typename T::second_type, F>;
    return std::pair<First, Second>{map_leaves<Leaf>(data.first, apply),
                                    map_leaves<Leaf>(data.second, apply)};
  } else if constexpr (is_a<T, std::optional>) {
    using Value = Mapped<Leaf, typename T::value_type, F>;
    return data ? std::optional<Value>(map_leaves<Leaf>(*data, apply)) : std::nullopt;
  } else if constexpr (is_a<T, std::variant>) {
    return map_variant<Leaf>(data, apply, std::make_index_sequence<std::variant_size_v<T>>());
  } else {
    T result = data;
    std::apply(
        [&](auto... member) { ((result.*member = map_leaves<Leaf>(data.*member, apply)), ...); },
        fields_of<T>());
    return result;
  }
}

// The structure of `data` with apply(tensor) in place of every tensor that is defined.
template <typename T, typename F>
T recursively_apply(const T& data, F&& apply) {
  return map_leaves<at::Tensor>(data, [&](const at::Tensor& tensor) -> at::Tensor {
    return tensor.defined() ? apply(tensor) : tensor;
  });
}

}  // namespace accel
