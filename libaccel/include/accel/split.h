// Split: which part of a list belongs to which process.
//
// The first (length mod W) of W processes get one element more: 17 elements over 4 give 5, 4, 4, 4.
// Without padding, processes beyond the length get nothing; with apply_padding every process gets
// as many as the first one: the last element of the list is repeated.
//
// Threads:  pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include <accel/error.h>
#include <accel/export.h>

namespace at {
class Tensor;
}

namespace accel {

struct SplitOptions {
  bool apply_padding = false;  // set it when the parts are gathered again afterwards
};

struct SplitRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t padded_length = 0;  // the length of the longest part
};

// Errors  kInvalidArgument unless 0 <= process_index < num_processes.
ACCEL_EXPORT SplitRange split_range(std::int64_t length, int num_processes, int process_index);

// Rows of a tensor. Errors kInvalidArgument for a 0-d tensor.
ACCEL_EXPORT at::Tensor split_for_process(const at::Tensor& inputs,
                                          int num_processes,
                                          int process_index,
                                          const SplitOptions& options);

template <typename T>
std::vector<T> split_for_process(const std::vector<T>& inputs,
                                 int num_processes,
                                 int process_index,
                                 const SplitOptions& options) {
  if (num_processes == 1) return inputs;
  const SplitRange range =
      split_range(static_cast<std::int64_t>(inputs.size()), num_processes, process_index);
  std::vector<T> part(inputs.begin() + range.begin, inputs.begin() + range.end);
  if (options.apply_padding && !inputs.empty()) {
    part.resize(static_cast<std::size_t>(range.padded_length), inputs.back());
  }
  return part;
}

namespace detail {

ACCEL_EXPORT std::int64_t length_for_split(const at::Tensor& inputs);

template <typename T>
std::int64_t length_for_split(const std::vector<T>& inputs) {
  return static_cast<std::int64_t>(inputs.size());
}

template <typename Map>
Map split_map(const Map& inputs,
              int num_processes,
              int process_index,
              const SplitOptions& options) {
  Map part;
  std::int64_t length = -1;
  for (const auto& [key, values] : inputs) {
    const std::int64_t own_length = length_for_split(values);
    if (length >= 0 && own_length != length) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a map to split has values of " + std::to_string(length) + " and of " +
                      std::to_string(own_length) + " elements",
                  "give every value of the map the same length");
    }
    length = own_length;
    part.emplace(key, split_for_process(values, num_processes, process_index, options));
  }
  return part;
}

}  // namespace detail

// All values must have the same length; errors kInvalidArgument otherwise.
template <typename K, typename V>
std::map<K, V> split_for_process(const std::map<K, V>& inputs,
                                 int num_processes,
                                 int process_index,
                                 const SplitOptions& options) {
  return detail::split_map(inputs, num_processes, process_index, options);
}
template <typename K, typename V>
std::unordered_map<K, V> split_for_process(const std::unordered_map<K, V>& inputs,
                                           int num_processes,
                                           int process_index,
                                           const SplitOptions& options) {
  return detail::split_map(inputs, num_processes, process_index, options);
}

}  // namespace accel
