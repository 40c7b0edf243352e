// Permutation: a random order of 0, 1, ..., size - 1; each position is computed, without a list.
//
// Threads:  any.
// Cost:     eight multiplications of 64 bits for a position; no memory.
// Source:   Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002), the generalised Feistel network with
//           cycle walking; the mixing function is the one of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include <accel/export.h>

namespace accel {

class ACCEL_EXPORT Permutation {
 public:
  // Other keys give other orders. Throws kInvalidArgument for a size that is not positive.
  Permutation(std::int64_t size, std::uint64_t key);

  [[nodiscard]] std::int64_t size() const noexcept { return size_; }
  // Requires 0 <= position < size().
  [[nodiscard]] std::int64_t operator[](std::int64_t position) const noexcept;

 private:
  static constexpr std::size_t kNumRounds = 8;

  std::int64_t size_;
  // A position is left * num_right_ + right; num_left_ * num_right_ >= size_.
  std::uint64_t num_left_;
  std::uint64_t num_right_;
  std::array<std::uint64_t, kNumRounds> keys_{};
};

}  // namespace accel
