#include "runtime/byte_size.h"

#include <gtest/gtest.h>

namespace accel::byte_size_test {
namespace {

TEST(ByteSize, UnitsArePowersOfTwo) {
  EXPECT_EQ(parse_byte_size("0"), 0U);
  EXPECT_EQ(parse_byte_size("4096"), 4096U);
  EXPECT_EQ(parse_byte_size("64K"), 65536U);
  EXPECT_EQ(parse_byte_size("256m"), 256U << 20);
  EXPECT_EQ(parse_byte_size("3G"), 3ULL << 30);
  EXPECT_EQ(parse_byte_size("2T"), 2ULL << 40);
}

TEST(ByteSize, WhatIsNoSizeIsRefused) {
  for (const char* text : {"", "K", "-1", "+1", " 1", "1 ", "1.5K", "1KB", "0x10", "1Q", "ten"})
    EXPECT_FALSE(parse_byte_size(text)) << text;
}

TEST(ByteSize, WhatDoesNotFitIsRefused) {
  EXPECT_EQ(parse_byte_size("9223372036854775807"), 9223372036854775807U);
  for (const char* text : {"9223372036854775808", "18446744073709551616", "9007199254740992K"})
    EXPECT_FALSE(parse_byte_size(text)) << text;
}

TEST(ByteSize, TextsHaveTheLargestUnitAndOneDigit) {
  EXPECT_EQ(byte_text(0), "0 bytes");
  EXPECT_EQ(byte_text(1023), "1023 bytes");
  EXPECT_EQ(byte_text(1536), "1.5 KiB");
  EXPECT_EQ(byte_text(152ULL << 20), "152.0 MiB");
  EXPECT_EQ(byte_text((1ULL << 30) - 1), "1023.9 MiB");
  EXPECT_EQ(byte_text(5000ULL << 40), "5000.0 TiB");
  EXPECT_EQ(byte_text(~0ULL), "16777215.9 TiB");
}

}  // namespace
}  // namespace accel::byte_size_test
