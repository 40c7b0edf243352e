// Eight rounds: a round adds to one half of the position a random function of the other half. Adding modulo the half's size is
// undone by subtracting, so every round is a permutation, whatever the function. The halves' sizes are close to the square root
// of the size, so that fewer than 1 in sqrt(size) positions lands beyond the end and walks on.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <accel/error.h>
#include <accel/permutation.h>
#include <accel/samplers.h>

namespace accel {
namespace {

constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15U;

std::uint64_t mixed(std::uint64_t value) noexcept {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

// 0 <= result < bound, from the high bits.
std::uint64_t reduced(std::uint64_t value, std::uint64_t bound) noexcept {
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>((static_cast<Wide>(value) * bound) >> 64U);
}

std::uint64_t sum_below(std::uint64_t a, std::uint64_t b, std::uint64_t bound) noexcept {
  const std::uint64_t sum = a + b;
  return sum >= bound ? sum - bound : sum;
}

}  // namespace

Permutation::Permutation(std::int64_t size, std::uint64_t key) : size_(size) {
  if (size <= 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "a permutation needs at least 1 element, got " + std::to_string(size));
  }
  num_left_ = static_cast<std::uint64_t>(std::ceil(std::sqrt(static_cast<double>(size))));
  num_right_ = (static_cast<std::uint64_t>(size) + num_left_ - 1) / num_left_;
  for (std::uint64_t& round : keys_) round = mixed(key += kGolden);
}

std::int64_t Permutation::operator[](std::int64_t position) const noexcept {
  auto value = static_cast<std::uint64_t>(position);
  do {
    std::uint64_t left = value / num_right_;
    std::uint64_t right = value % num_right_;
    for (std::size_t round = 0; round < keys_.size(); round += 2) {
      left = sum_below(left, reduced(mixed(keys_.at(round) ^ right), num_left_), num_left_);
      right = sum_below(right, reduced(mixed(keys_.at(round + 1) ^ left), num_right_), num_right_);
    }
    value = left * num_right_ + right;
  } while (value >= static_cast<std::uint64_t>(size_));
  return static_cast<std::int64_t>(value);
}

IndexOrder::IndexOrder(std::shared_ptr<const Permutation> permutation)
    : size_(permutation->size()), permutation_(std::move(permutation)) {}

std::int64_t IndexOrder::permuted(std::int64_t position) const {
  return (*permutation_)[position];
}

}  // namespace accel
