// Alignment: what sizes and addresses are rounded up to.
//
// Threads:  pure.
#pragma once

#include <concepts>
#include <cstddef>
#include <type_traits>

namespace accel {

inline constexpr std::size_t kCacheLine = 64;                   // bytes
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;  // bytes

// The smallest multiple that is not below value. Requires: value >= 0, multiple > 0, and the sum of both fits Number.
template <std::integral Number>
[[nodiscard]] constexpr Number rounded_up(Number value,
                                          std::type_identity_t<Number> multiple) noexcept {
  return (value + multiple - 1) / multiple * multiple;
}

}  // namespace accel
