// half: float16 and bfloat16 as bits, to and from float.
//
// The conversions have no branches that data decides, so that loops over them are vectorised.
//
// Threads:  pure functions.
// Source:   IEEE 754-2008, binary16; rounding is to nearest, ties to even. NaN stays NaN, its payload may change.
#pragma once

#include <bit>
#include <cstdint>

namespace accel::shm {

struct Half {
  std::uint16_t bits = 0;
};
struct BFloat16 {
  std::uint16_t bits = 0;
};

inline float to_float(BFloat16 value) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value.bits) << 16);
}

inline BFloat16 to_bfloat16(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = bits + 0x7fffU + ((bits >> 16) & 1U);
  const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;
  return {static_cast<std::uint16_t>((is_nan ? bits | 0x400000U : rounded) >> 16)};
}

// The exponent of binary16 is biased by 15, that of binary32 by 127: a half's bits, moved to a float's place, are its
// value times 2^-112, subnormals too.
inline float to_float(Half value) noexcept {
  const std::uint32_t magnitude = value.bits & 0x7fffU;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112F;
  const std::uint32_t special = magnitude >= 0x7c00U ? 0x7f800000U : 0U;  // infinity, NaN
  const std::uint32_t sign = static_cast<std::uint32_t>(value.bits & 0x8000U) << 16;
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(scaled) | special | sign);
}

inline Half to_half(float value) noexcept {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  const std::uint32_t normal = (magnitude - (112U << 23) + 0xfffU + ((magnitude >> 13) & 1U)) >> 13;
  // Added to 0.5, whose last bit is worth 2^-24, as a half's subnormals are: the addition rounds.
  const float aligned = std::bit_cast<float>(magnitude) + 0.5F;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(aligned) - std::bit_cast<std::uint32_t>(0.5F);
  std::uint32_t half = magnitude < 0x38800000U ? subnormal : normal;  // 2^-14
  half = magnitude >= 0x47800000U ? 0x7c00U : half;                   // 2^16 and above
  half = magnitude > 0x7f800000U ? 0x7e00U : half;
  return {static_cast<std::uint16_t>(half | ((bits >> 16) & 0x8000U))};
}

}  // namespace accel::shm
