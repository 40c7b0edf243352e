// Concatenate: joins several batches of the same structure (see nested.h) to one.
//
// Threads:  no state. Cost: one copy of all tensors.
#pragma once

#include <concepts>
#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include <accel/export.h>
#include <accel/nested.h>

namespace accel {

// Joins batches of the same structure: tensors along `dim`, vectors without tensors one after
// another. Other leaves must be equal in all batches. Errors  kInvalidArgument for no batch, or for
// batches that differ in structure.
template <typename T>
T concatenate(const std::vector<T>& batches, std::int64_t dim = 0);

namespace detail {

ACCEL_EXPORT at::Tensor concatenate_tensors(const std::vector<at::Tensor>& tensors,
                                            std::int64_t dim);
[[noreturn]] ACCEL_EXPORT void throw_cannot_concatenate(std::string_view why);

// concatenate() of one member of every batch.
template <typename T, typename Member>
auto concatenate_part(const std::vector<T>& batches, std::int64_t dim, Member&& member) {
  std::vector<std::remove_cvref_t<decltype(member(batches.front()))>> parts;
  parts.reserve(batches.size());
  for (const T& batch : batches) parts.push_back(member(batch));
  return concatenate(parts, dim);
}

template <typename T>
T concatenate_sequences(const std::vector<T>& batches, std::int64_t dim) {
  T result = batches.front();
  for (const T& batch : batches) {
    if (batch.size() != result.size())
      throw_cannot_concatenate("they hold lists of different lengths");
  }
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = concatenate_part(
        batches, dim, [i](const T& batch) -> const auto& { return batch[i]; });
  }
  return result;
}

template <typename T>
T concatenate_maps(const std::vector<T>& batches, std::int64_t dim) {
  T result = batches.front();
  for (const T& batch : batches) {
    if (batch.size() != result.size())
      throw_cannot_concatenate("they hold maps with different keys");
  }
  for (auto& entry : result) {
    entry.second = concatenate_part(
        batches, dim, [&](const T& batch) -> const auto& {
          const auto found = batch.find(entry.first);
          if (found == batch.end()) throw_cannot_concatenate("they hold maps with different keys");
          return found->second;
        });
  }
  return result;
}

template <typename T>
T concatenate_optionals(const std::vector<T>& batches, std::int64_t dim) {
  for (const T& batch : batches) {
    if (batch.has_value() != batches.front().has_value())
      throw_cannot_concatenate("some lack a value");
  }
  if (!batches.front()) return std::nullopt;
  return concatenate_part(
      batches, dim, [](const T& batch) -> const auto& { return *batch; });
}

template <typename... Parts>
std::variant<Parts...> concatenate_variants(const std::vector<std::variant<Parts...>>& batches,
                                            std::int64_t dim) {
  using Variant = std::variant<Parts...>;
  return std::visit(
      [&]<typename Part>(const Part&) -> Variant {
        return concatenate_part(batches, dim, [](const Variant& batch) -> const Part& {
          const Part* part = std::get_if<Part>(&batch);
          if (part == nullptr)
            throw_cannot_concatenate("they hold different alternatives of a variant");
          return *part;
        });
      },
      batches.front());
}

template <typename T>
T concatenate_leaves(const std::vector<T>& batches) {
  if (batches.size() == 1) return batches.front();
  if constexpr (std::equality_comparable<T>) {
    for (const T& batch : batches) {
      if (!(batch == batches.front()))
        throw_cannot_concatenate("they hold different values that are no tensors");
    }
    return batches.front();
  } else {
    throw_cannot_concatenate("they hold values that are no tensors");
  }
}

}  // namespace detail

template <typename T>
T concatenate(const std::vector<T>& batches, std::int64_t dim) {
  using namespace detail;
  if (batches.empty()) throw_cannot_concatenate("there are none");
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return concatenate_tensors(batches, dim);
  } else if constexpr (is_a<T, std::vector> && !Contains<T, at::Tensor>::value) {
    T result;
    for (const T& batch : batches) result.insert(result.end(), batch.begin(), batch.end());
    return result;
  } else if constexpr (!Contains<T, at::Tensor>::value) {
    return concatenate_leaves(batches);
  } else if constexpr (is_sequence<T>) {
    return concatenate_sequences(batches, dim);
  } else if constexpr (is_map<T>) {
    return concatenate_maps(batches, dim);
  } else if constexpr (is_a<T, std::optional>) {
    return concatenate_optionals(batches, dim);
  } else if constexpr (is_a<T, std::variant>) {
    return concatenate_variants(batches, dim);
  } else if constexpr (is_product<T>) {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return T{concatenate_part(
          batches, dim, [](const T& batch) -> const auto& { return std::get<I>(batch); })...};
    }
    (std::make_index_sequence<std::tuple_size_v<T>>());
  } else {
    T result = batches.front();
    std::apply(
        [&](auto... member) {
          ((result.*member = concatenate_part(
                batches, dim, [member](const T& batch) -> const auto& { return batch.*member; })),
           ...);
        },
        fields_of<T>());
    return result;
  }
}

}  // namespace accel
