// PickleShape: sizes, offsets and strides in a pickle: a tuple of numbers, or a torch.Size made of one.
//
// Threads:  pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "checkpoint_tools/formats/pickle.h"

namespace accel::launcher {

inline constexpr std::size_t kMostDims = 64;  // as PyTorch

// nullopt: it is something else, has more than kMostDims numbers, or one is negative.
[[nodiscard]] inline std::optional<std::vector<std::uint64_t>> sizes_of(const Pickle& pickle,
                                                                        PickleNode node) {
  if (pickle.made_by(node) == "torch Size") {
    const auto arguments = pickle.arguments(node);
    if (arguments.size() != 1) return std::nullopt;
    node = arguments[0];
  }
  const auto items = pickle.sequence(node);
  if (!items || items->size() > kMostDims) return std::nullopt;
  std::vector<std::uint64_t> sizes;
  for (const PickleNode item : *items) {
    const auto size = pickle.integer(item);
    if (!size || *size < 0) return std::nullopt;
    sizes.push_back(static_cast<std::uint64_t>(*size));
  }
  return sizes;
}

}  // namespace accel::launcher
