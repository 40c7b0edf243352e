#include "libaccel/engine/shm/numbers/half.h"

#include <cmath>
#include <cstring>
#include <random>

#include <gtest/gtest.h>

namespace accel::shm::half_test {
namespace {

// By the definition of binary16: sign, five bits of exponent, ten of fraction.
double value_of(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign *
         (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

std::uint32_t bits_of(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

TEST(HalfTest, EveryHalfIsTheFloatOfItsValueAndComesBack) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<std::uint16_t>(bits)};
    const double expected = value_of(half.bits);
    const float value = to_float(half);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << bits;
      EXPECT_TRUE(std::isnan(to_float(to_half(value)))) << bits;
      continue;
    }
    ASSERT_EQ(bits_of(value), bits_of(static_cast<float>(expected))) << bits;
    ASSERT_EQ(to_half(value).bits, half.bits) << bits;
  }
}

TEST(HalfTest, RoundingIsToTheNearestAndTiesGoToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {  // up to the largest
    const auto low = static_cast<std::uint16_t>(bits);
    const auto high = static_cast<std::uint16_t>(bits + 1);
    const auto middle = static_cast<float>((value_of(low) + value_of(high)) / 2);
    ASSERT_EQ(to_half(middle).bits, low % 2 == 0 ? low : high) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, 0.0F)).bits, low) << bits;
    ASSERT_EQ(to_half(std::nextafter(middle, INFINITY)).bits, high) << bits;
    ASSERT_EQ(to_half(-middle).bits, to_half(middle).bits | 0x8000) << bits;
  }
}

TEST(HalfTest, WhatIsTooLargeIsInfinite) {
  EXPECT_EQ(to_half(65504.0F).bits, 0x7bff);
  EXPECT_EQ(to_half(65519.0F).bits, 0x7bff);
  EXPECT_EQ(to_half(65520.0F).bits, 0x7c00);
  EXPECT_EQ(to_half(1e30F).bits, 0x7c00);
  EXPECT_EQ(to_half(-INFINITY).bits, 0xfc00);
  EXPECT_TRUE(std::isnan(to_float(to_half(NAN))));
}

TEST(BFloat16Test, EveryOneComesBack) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const BFloat16 value{static_cast<std::uint16_t>(bits)};
    if (std::isnan(to_float(value))) {
      EXPECT_TRUE(std::isnan(to_float(to_bfloat16(to_float(value))))) << bits;
    } else {
      ASSERT_EQ(to_bfloat16(to_float(value)).bits, value.bits) << bits;
    }
  }
}

TEST(BFloat16Test, RoundingIsToTheNearestAndTiesGoToEven) {
  std::mt19937 random(7);
  for (int i = 0; i < 100'000; ++i) {
    const std::uint32_t bits = random() & 0x7f7f0000U;  // finite, below the largest
    float low = 0;
    float middle = 0;
    const std::uint32_t middle_bits = bits | 0x8000U;
    std::memcpy(&low, &bits, sizeof low);
    std::memcpy(&middle, &middle_bits, sizeof middle);
    const auto even = static_cast<std::uint16_t>((bits >> 16) + (bits >> 16 & 1U));
    ASSERT_EQ(to_bfloat16(middle).bits, even) << bits;
    ASSERT_EQ(to_bfloat16(std::nextafter(middle, low)).bits, bits >> 16) << bits;
    ASSERT_EQ(to_bfloat16(std::nextafter(middle, INFINITY)).bits, (bits >> 16) + 1) << bits;
  }
}

}  // namespace
}  // namespace accel::shm::half_test
