// Rows of a gathered batch that are samples, not repeats that made the ranks even.
//
// Every rank has its samples before its repeats, so a count for each rank gives these rows.
//
// Threads:  the thread that trains; every rank makes the same calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/nested.h>

namespace accel::detail {

// The values of all ranks, by rank. One all-gather of 8 bytes.
[[nodiscard]] ACCEL_EXPORT std::vector<std::int64_t> counts_of_ranks(std::int64_t own);
// [W * n, ...] -> [sum of counts, ...]: the first rows among the n rows of each rank.
[[nodiscard]] ACCEL_EXPORT at::Tensor first_rows_of_ranks(const at::Tensor& gathered,
                                                          const std::vector<std::int64_t>& counts);

// own: samples of this rank. gathered: the result of gather().
template <typename T>
T without_repeats(const T& gathered, std::int64_t own) {
  const std::vector<std::int64_t> counts = counts_of_ranks(own);
  return recursively_apply(
      gathered, [&](const at::Tensor& rows) { return first_rows_of_ranks(rows, counts); });
}

// The first `count` elements, or all.
template <typename T>
T first_of(T list, std::int64_t count) {
  if (static_cast<std::size_t>(count) < list.size()) list.erase(list.begin() + count, list.end());
  return list;
}

}  // namespace accel::detail
