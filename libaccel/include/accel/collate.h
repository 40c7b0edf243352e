// Collate: makes one batch from elements of a dataset.
//
//   element                              batch
//   at::Tensor                           at::Tensor, stacked along a new first dimension
//   bool, integers, float, double        at::Tensor of kBool, kLong, kFloat, kDouble
//   std::string                          std::vector<std::string>
//   pair, tuple, map, torch's Example    the same, each part collated
//   vector, array                        a vector (array) of collated positions
//   struct with fields() (nested.h)      the same struct, each field collated; the fields must be tensors
//
// A DataLoader calls default_collate(), or the collate function that it was given (to pad sequences, for instance).
//
// Threads:  pure functions. The workers of a loader call them.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>

namespace torch::data {
template <typename Data, typename Target>
struct Example;  // not <torch/data/example.h>, which includes all operators of ATen
}  // namespace torch::data

namespace accel {

// Stacks the elements along a new first dimension.
// Errors  kShapeMismatch names the first element with another shape; kInvalidArgument if there are no elements.
ACCEL_EXPORT at::Tensor stack_elements(const std::vector<at::Tensor>& elements);

// A tensor of one dimension with these values. Its dtype is kLong, kFloat, kDouble or kBool.
ACCEL_EXPORT at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& numbers);
ACCEL_EXPORT at::Tensor tensor_of_numbers(const std::vector<float>& numbers);
ACCEL_EXPORT at::Tensor tensor_of_numbers(const std::vector<double>& numbers);
ACCEL_EXPORT at::Tensor tensor_of_flags(const std::vector<bool>& flags);

namespace detail {

[[noreturn]] ACCEL_EXPORT void throw_different_keys(std::size_t element);
[[noreturn]] ACCEL_EXPORT void throw_different_lengths(std::size_t element,
                                                       std::size_t length,
                                                       std::size_t first_length);

// Calls part(element) for each element and collates the results.
template <typename T, typename Part>
auto collate_part(const std::vector<T>& elements, Part part);

template <typename T>
struct Collator {
  static_assert(
      !std::is_same_v<T, T>,
      "elements of this type cannot be collated by default: pass a collate function to the "
      "DataLoader, or give the struct fields() (see accel/nested.h)");
};

template <>
struct Collator<at::Tensor> {
  static at::Tensor collate(const std::vector<at::Tensor>& elements) {
    return stack_elements(elements);
  }
};

template <>
struct Collator<bool> {
  static at::Tensor collate(const std::vector<bool>& elements) { return tensor_of_flags(elements); }
};

template <std::integral T>
struct Collator<T> {
  static at::Tensor collate(const std::vector<T>& elements) {
    return tensor_of_numbers(std::vector<std::int64_t>(elements.begin(), elements.end()));
  }
};

template <>
struct Collator<float> {
  static at::Tensor collate(const std::vector<float>& elements) {
    return tensor_of_numbers(elements);
  }
};

template <>
struct Collator<double> {
  static at::Tensor collate(const std::vector<double>& elements) {
    return tensor_of_numbers(elements);
  }
};

template <>
struct Collator<std::string> {
  static std::vector<std::string> collate(std::vector<std::string> elements) { return elements; }
};

template <typename A, typename B>
struct Collator<std::pair<A, B>> {
  static auto collate(const std::vector<std::pair<A, B>>& elements) {
    return std::make_pair(
        collate_part(elements, [](const auto& element) { return element.first; }),
        collate_part(elements, [](const auto& element) { return element.second; }));
  }
};

template <typename... Parts>
struct Collator<std::tuple<Parts...>> {
  static auto collate(const std::vector<std::tuple<Parts...>>& elements) {
    return collate_all(elements, std::index_sequence_for<Parts...>{});
  }

 private:
  template <std::size_t... I>
  static auto collate_all(const std::vector<std::tuple<Parts...>>& elements,
                          std::index_sequence<I...> /*parts*/) {
    return std::make_tuple(
        collate_part(elements, [](const auto& element) { return std::get<I>(element); })...);
  }
};

template <typename Data, typename Target>
struct Collator<torch::data::Example<Data, Target>> {
  static auto collate(const std::vector<torch::data::Example<Data, Target>>& elements) {
    auto data = collate_part(elements, [](const auto& element) { return element.data; });
    auto target = collate_part(elements, [](const auto& element) { return element.target; });
    return torch::data::Example<decltype(data), decltype(target)>(std::move(data),
                                                                  std::move(target));
  }
};

template <typename Data>
struct Collator<torch::data::Example<Data, void>> {
  static auto collate(const std::vector<torch::data::Example<Data, void>>& elements) {
    auto data = collate_part(elements, [](const auto& element) { return element.data; });
    return torch::data::Example<decltype(data), void>(std::move(data));
  }
};

template <typename Map>
auto collate_maps(const std::vector<Map>& elements) {
  using Value = decltype(Collator<typename Map::mapped_type>::collate({}));
  std::map<typename Map::key_type, Value> batch;
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (elements[i].size() != elements[0].size()) throw_different_keys(i);
  }
  for (const auto& [key, unused] : elements.at(0)) {
    std::vector<typename Map::mapped_type> values;
    for (std::size_t i = 0; i < elements.size(); ++i) {
      const auto found = elements[i].find(key);
      if (found == elements[i].end()) throw_different_keys(i);
      values.push_back(found->second);
    }
    batch.emplace(key, Collator<typename Map::mapped_type>::collate(std::move(values)));
  }
  return batch;
}

template <typename Key, typename T>
struct Collator<std::map<Key, T>> {
  static auto collate(const std::vector<std::map<Key, T>>& elements) {
    return collate_maps(elements);
  }
};

template <typename Key, typename T>
struct Collator<std::unordered_map<Key, T>> {
  static auto collate(const std::vector<std::unordered_map<Key, T>>& elements) {
    return collate_maps(elements);
  }
};

template <typename T>
struct Collator<std::vector<T>> {
  static auto collate(const std::vector<std::vector<T>>& elements) {
    const std::size_t length = elements.at(0).size();
    for (std::size_t i = 0; i < elements.size(); ++i) {
      if (elements[i].size() != length) throw_different_lengths(i, elements[i].size(), length);
    }
    std::vector<decltype(Collator<T>::collate({}))> batch;
    for (std::size_t position = 0; position < length; ++position) {
      batch.push_back(
          collate_part(elements, [&](const auto& element) -> T { return element[position]; }));
    }
    return batch;
  }
};

template <typename T, std::size_t N>
struct Collator<std::array<T, N>> {
  static auto collate(const std::vector<std::array<T, N>>& elements) {
    std::array<decltype(Collator<T>::collate({})), N> batch;
    for (std::size_t position = 0; position < N; ++position) {
      batch[position] =
          collate_part(elements, [&](const auto& element) { return element[position]; });
    }
    return batch;
  }
};

template <HasFields T>
struct Collator<T> {
  static T collate(const std::vector<T>& elements) {
    T batch;
    std::apply(
        [&](auto... field) {
          ((batch.*field =
                collate_part(elements, [&](const auto& element) { return element.*field; })),
           ...);
        },
        T::fields());
    return batch;
  }
};

template <typename T, typename Part>
auto collate_part(const std::vector<T>& elements, Part part) {
  using Value = std::invoke_result_t<Part&, const T&>;
  std::vector<Value> parts;
  parts.reserve(elements.size());
  for (const T& element : elements) parts.push_back(part(element));
  return Collator<Value>::collate(std::move(parts));
}

}  // namespace detail

template <typename T>
auto default_collate(std::vector<T> elements) {
  return detail::Collator<T>::collate(std::move(elements));
}

}  // namespace accel
