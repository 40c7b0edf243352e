#include "libaccel/engine/shm/numbers/reduction.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <complex>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/engine/shm/numbers/half.h"

namespace accel::shm::reduction_test {
namespace {

using ::testing::ElementsAre;

template <typename T>
std::vector<T> reduced(const std::vector<std::vector<T>>& operands, DataType type, ReduceOp op) {
  std::vector<const std::byte*> pointers;
  for (const auto& operand : operands)
    pointers.push_back(reinterpret_cast<const std::byte*>(operand.data()));
  std::vector<T> out(operands.front().size());
  reduce_elements(pointers, out.size(), type, op, reinterpret_cast<std::byte*>(out.data()));
  return out;
}

std::vector<std::vector<float>> random_floats(int ranks, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0F, 100.0F);
  std::vector<std::vector<float>> all(static_cast<std::size_t>(ranks), std::vector<float>(count));
  for (auto& one : all) std::generate(one.begin(), one.end(), [&] { return normal(random); });
  return all;
}

// More than a block, and no multiple of one.
constexpr std::size_t kCount = 2'500;

TEST(Reduction, FloatsAreSummedInTheOrderOfTheRanks) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    const auto operands = random_floats(ranks, kCount, 11);
    const auto out = reduced(operands, DataType::kFloat32, ReduceOp::kSum);
    for (std::size_t i = 0; i < kCount; ++i) {
      float expected = operands[0][i];
      for (int rank = 1; rank < ranks; ++rank)
        expected += operands[static_cast<std::size_t>(rank)][i];
      ASSERT_EQ(out[i], expected) << ranks << " ranks, " << i;
    }
  }
}

// Few operands have loops of their own: the same is asked of each number of them, in steps of two.
TEST(Reduction, AnyNumberOfOperandsGivesWhatStepsOfTwoGive) {
  for (std::size_t ranks = 2; ranks <= 6; ++ranks) {
    const auto operands = random_floats(static_cast<int>(ranks), kCount, 16);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
      auto expected = operands[0];
      for (std::size_t rank = 1; rank < ranks; ++rank)
        expected = reduced<float>({expected, operands[rank]}, DataType::kFloat32, op);
      EXPECT_EQ(reduced(operands, DataType::kFloat32, op), expected)
          << name_of(op) << " of " << ranks;
    }
    auto mean = reduced(operands, DataType::kFloat32, ReduceOp::kSum);
    for (float& value : mean) value /= static_cast<float>(ranks);
    EXPECT_EQ(reduced(operands, DataType::kFloat32, ReduceOp::kAverage), mean) << ranks;
  }
}

TEST(Reduction, TheResultMayBeInPlaceOfAnyOperand) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMax}) {
    for (int ranks = 2; ranks <= 5; ++ranks) {
      const auto operands = random_floats(ranks, kCount, 14);
      const auto expected = reduced(operands, DataType::kFloat32, op);
      for (std::size_t location = 0; location < operands.size(); ++location) {
        auto own = operands;
        std::vector<const std::byte*> pointers;
        for (const auto& one : own)
          pointers.push_back(reinterpret_cast<const std::byte*>(one.data()));
        auto* const out = reinterpret_cast<std::byte*>(own[location].data());
        reduce_elements(pointers, kCount, DataType::kFloat32, op, out);
        EXPECT_EQ(own[location], expected) << ranks << " operands, in location of " << location;
      }
    }
  }
}

// Beyond four, operands are added up in memory; zeros beside them change no sum.
TEST(Reduction, HalvesOfFewAreThoseOfManyWithZeros) {
  for (std::size_t few = 2; few <= 4; ++few) {
    const auto numbers = random_floats(static_cast<int>(few), kCount, 15);
    std::vector<std::vector<Half>> halves(5, std::vector<Half>(kCount));
    std::vector<std::vector<BFloat16>> bfloats(5, std::vector<BFloat16>(kCount));
    for (std::size_t i = 0; i < kCount; ++i) {
      for (std::size_t rank = 0; rank < few; ++rank) {
        halves[rank][i] = to_half(numbers[rank][i]);
        bfloats[rank][i] = to_bfloat16(numbers[rank][i]);
      }
    }
    const auto half_sums = reduced(halves, DataType::kFloat16, ReduceOp::kSum);
    const auto bfloat_sums = reduced(bfloats, DataType::kBFloat16, ReduceOp::kSum);
    halves.resize(few);
    bfloats.resize(few);
    const auto of_few = reduced(halves, DataType::kFloat16, ReduceOp::kSum);
    const auto bfloats_of_few = reduced(bfloats, DataType::kBFloat16, ReduceOp::kSum);
    for (std::size_t i = 0; i < kCount; ++i) {
      ASSERT_EQ(of_few[i].bits, half_sums[i].bits) << few << " operands, " << i;
      ASSERT_EQ(bfloats_of_few[i].bits, bfloat_sums[i].bits) << few << " operands, " << i;
    }
  }
}

TEST(Reduction, TheAverageIsTheSumDividedOnce) {
  const auto operands = random_floats(3, kCount, 12);
  const auto out = reduced(operands, DataType::kFloat32, ReduceOp::kAverage);
  for (std::size_t i = 0; i < kCount; ++i)
    ASSERT_EQ(out[i], (operands[0][i] + operands[1][i] + operands[2][i]) / 3.0F);
}

// As NCCL's.
TEST(Reduction, AveragesOfWholeNumbersAreCutOffTowardsZero) {
  const std::vector<std::vector<std::int32_t>> ints = {{7, -7, 5}, {0, 0, -9}};
  EXPECT_THAT(reduced(ints, DataType::kInt32, ReduceOp::kAverage), ElementsAre(3, -3, -2));
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::vector<std::uint64_t>> big = {{kMost - 2, kMost}, {1, 1}};
  EXPECT_THAT(reduced(big, DataType::kUInt64, ReduceOp::kAverage),
              ElementsAre((kMost - 1) / 2, 0));  // the second sum wraps around
  const std::vector<std::vector<std::uint8_t>> bytes(5, {50, 52});
  EXPECT_THAT(reduced(bytes, DataType::kUInt8, ReduceOp::kAverage), ElementsAre(50, 0));
}

TEST(Reduction, MoreRanksThanATypeHoldsDivideItsSum) {
  const std::vector<std::vector<std::int8_t>> ones(200, {1, 0});
  EXPECT_THAT(reduced(ones, DataType::kInt8, ReduceOp::kAverage), ElementsAre(0, 0));  // -56 / 200
  std::vector<std::int8_t> sums = {100, -100};
  divide_elements(reinterpret_cast<std::byte*>(sums.data()), 2, DataType::kInt8, 200);
  EXPECT_THAT(sums, ElementsAre(0, 0));
}

TEST(Reduction, ComplexNumbersAreMultiplied) {
  using Complex = std::complex<double>;
  std::vector<std::vector<Complex>> numbers;
  std::vector<std::vector<std::complex<float>>> narrow;
  std::vector<std::vector<std::array<Half, 2>>> halves;
  for (int rank = 0; rank < 6; ++rank) {
    numbers.push_back({{1.0 + rank % 2, 1.0 - rank % 3}, {0, 1}});
    narrow.emplace_back(numbers.back().begin(), numbers.back().end());
    auto& last = halves.emplace_back();
    for (const auto& number : narrow.back())
      last.push_back({to_half(number.real()), to_half(number.imag())});
    Complex expected = numbers[0][0];
    for (int i = 1; i <= rank; ++i) expected *= numbers[static_cast<std::size_t>(i)][0];
    const auto product = reduced(numbers, DataType::kComplex128, ReduceOp::kProduct);
    EXPECT_EQ(product[0], expected) << rank + 1 << " operands";
    const auto of_floats = reduced(narrow, DataType::kComplex64, ReduceOp::kProduct);
    EXPECT_EQ(Complex(of_floats[0]), expected);
    const auto of_halves = reduced(halves, DataType::kComplex32, ReduceOp::kProduct);
    EXPECT_EQ(Complex(to_float(of_halves[0][0]), to_float(of_halves[0][1])), expected);
  }
}

TEST(Reduction, HalvesAreAccumulatedInFloatAndRoundedOnce) {
  const auto floats = random_floats(4, kCount, 13);
  std::vector<std::vector<std::uint16_t>> halves(4);
  std::vector<std::vector<std::uint16_t>> brains(4);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (const float value : floats[rank]) {
      halves[rank].push_back(to_half(value).bits);
      brains[rank].push_back(to_bfloat16(value).bits);
    }
  }
  const auto half_sums = reduced(halves, DataType::kFloat16, ReduceOp::kSum);
  const auto brain_sums = reduced(brains, DataType::kBFloat16, ReduceOp::kSum);
  for (std::size_t i = 0; i < kCount; ++i) {
    float half = to_float(Half{halves[0][i]});
    float brain = to_float(BFloat16{brains[0][i]});
    for (std::size_t rank = 1; rank < 4; ++rank) {
      half += to_float(Half{halves[rank][i]});
      brain += to_float(BFloat16{brains[rank][i]});
    }
    ASSERT_EQ(half_sums[i], to_half(half).bits);
    ASSERT_EQ(brain_sums[i], to_bfloat16(brain).bits);
  }
}

TEST(Reduction, MinAndMaxKnowSignsAndPassNanOn) {
  const std::vector<std::vector<float>> floats = {{-1, 5, NAN, 1}, {2, -7, 3, NAN}};
  const auto low = reduced(floats, DataType::kFloat32, ReduceOp::kMin);
  EXPECT_EQ(low[0], -1);
  EXPECT_EQ(low[1], -7);
  EXPECT_TRUE(std::isnan(low[2]));
  EXPECT_TRUE(std::isnan(low[3]));
  const std::vector<std::vector<std::int8_t>> bytes = {{-128, 5, 0}, {127, -6, -1}};
  EXPECT_THAT(reduced(bytes, DataType::kInt8, ReduceOp::kMin), ElementsAre(-128, -6, -1));
  EXPECT_THAT(reduced(bytes, DataType::kInt8, ReduceOp::kMax), ElementsAre(127, 5, 0));
  const std::vector<std::vector<std::uint8_t>> unsigned_bytes = {{200, 0}, {100, 255}};
  EXPECT_THAT(reduced(unsigned_bytes, DataType::kUInt8, ReduceOp::kMax), ElementsAre(200, 255));
}

TEST(Reduction, WholeNumbersWrapAround) {
  constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::vector<std::int64_t>> numbers = {{kMost, 3}, {1, -4}, {0, 5}};
  EXPECT_THAT(reduced(numbers, DataType::kInt64, ReduceOp::kSum),
              ElementsAre(std::numeric_limits<std::int64_t>::min(), 4));
  const std::vector<std::vector<std::int16_t>> shorts = {{-32768, 300}, {-1, 300}};
  EXPECT_THAT(reduced(shorts, DataType::kInt16, ReduceOp::kProduct), ElementsAre(-32768, 24464));
  const std::vector<std::vector<std::int32_t>> ints = {{0b1100}, {0b1010}};
  EXPECT_THAT(reduced(ints, DataType::kInt32, ReduceOp::kBitAnd), ElementsAre(0b1000));
  EXPECT_THAT(reduced(ints, DataType::kInt32, ReduceOp::kBitOr), ElementsAre(0b1110));
  EXPECT_THAT(reduced(ints, DataType::kInt32, ReduceOp::kBitXor), ElementsAre(0b0110));
}

TEST(Reduction, UnsignedNumbersAreNoSignedOnes) {
  constexpr auto kMost = std::numeric_limits<std::uint64_t>::max();
  const std::vector<std::vector<std::uint64_t>> numbers = {{kMost, 3}, {1, kMost}};
  EXPECT_THAT(reduced(numbers, DataType::kUInt64, ReduceOp::kMax), ElementsAre(kMost, kMost));
  EXPECT_THAT(reduced(numbers, DataType::kUInt64, ReduceOp::kMin), ElementsAre(1, 3));
  EXPECT_THAT(reduced(numbers, DataType::kUInt64, ReduceOp::kSum), ElementsAre(0, 2));
  const std::vector<std::vector<std::uint32_t>> words = {{0x80000000U}, {3}};
  EXPECT_THAT(reduced(words, DataType::kUInt32, ReduceOp::kMax), ElementsAre(0x80000000U));
  EXPECT_THAT(reduced(words, DataType::kUInt32, ReduceOp::kBitOr), ElementsAre(0x80000003U));
  const std::vector<std::vector<std::uint16_t>> shorts = {{65535}, {65535}};
  EXPECT_THAT(reduced(shorts, DataType::kUInt16, ReduceOp::kProduct), ElementsAre(1));
  EXPECT_THAT(reduced(shorts, DataType::kUInt16, ReduceOp::kSum), ElementsAre(65534));
}

TEST(Reduction, BoolIsOrForSumsAndAndForProducts) {
  const std::vector<std::vector<std::uint8_t>> bools = {{0, 0, 1, 1}, {0, 1, 0, 1}};
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kBitOr})
    EXPECT_THAT(reduced(bools, DataType::kBool, op), ElementsAre(0, 1, 1, 1));
  for (const ReduceOp op : {ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kBitAnd})
    EXPECT_THAT(reduced(bools, DataType::kBool, op), ElementsAre(0, 0, 0, 1));
  EXPECT_THAT(reduced(bools, DataType::kBool, ReduceOp::kBitXor), ElementsAre(0, 1, 1, 0));
}

TEST(Reduction, TheResultMayReplaceAnOperand) {
  auto operands = random_floats(3, kCount, 14);
  const auto expected = reduced(operands, DataType::kFloat32, ReduceOp::kSum);
  std::vector<const std::byte*> pointers;
  for (const auto& operand : operands)
    pointers.push_back(reinterpret_cast<const std::byte*>(operand.data()));
  reduce_elements(pointers,
                  kCount,
                  DataType::kFloat32,
                  ReduceOp::kSum,
                  reinterpret_cast<std::byte*>(operands[1].data()));
  EXPECT_EQ(operands[1], expected);
}

// In each type that has a factor: what is written out and read again is what the sum takes.
template <typename T, typename Multiply>
void expect_scaled_sums(DataType type,
                        const std::vector<std::vector<T>>& operands,
                        Multiply scaled) {
  for (std::size_t ranks = 1; ranks <= operands.size(); ++ranks) {
    std::vector<std::vector<T>> multiplied(operands.begin(),
                                           operands.begin() + static_cast<std::ptrdiff_t>(ranks));
    std::vector<const std::byte*> pointers;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      for (T& value : multiplied[rank]) value = scaled(value);
      pointers.push_back(reinterpret_cast<const std::byte*>(operands[rank].data()));
    }
    const auto expected = reduced(multiplied, type, ReduceOp::kSum);
    std::vector<T> out(expected.size());
    sum_scaled(pointers, out.size(), type, 1.0 / 3.0, reinterpret_cast<std::byte*>(out.data()));
    EXPECT_EQ(std::memcmp(out.data(), expected.data(), out.size() * sizeof(T)), 0)
        << name_of(type) << " of " << ranks;
  }
}

TEST(Reduction, AFactorRoundsEachOperandBeforeTheSum) {
  const auto floats = random_floats(6, kCount, 21);
  std::vector<std::vector<double>> doubles;
  std::vector<std::vector<Half>> halves;
  std::vector<std::vector<BFloat16>> brains;
  for (const auto& one : floats) {
    doubles.emplace_back(one.begin(), one.end());
    auto& half = halves.emplace_back();
    auto& brain = brains.emplace_back();
    for (const float value : one) {
      half.push_back(to_half(value));
      brain.push_back(to_bfloat16(value));
    }
  }
  constexpr float kThird = static_cast<float>(1.0 / 3.0);
  expect_scaled_sums(DataType::kFloat32, floats, [](float x) { return x * kThird; });
  expect_scaled_sums(DataType::kFloat64, doubles, [](double x) { return x * (1.0 / 3.0); });
  expect_scaled_sums(
      DataType::kFloat16, halves, [](Half x) { return to_half(to_float(x) * kThird); });
  expect_scaled_sums(
      DataType::kBFloat16, brains, [](BFloat16 x) { return to_bfloat16(to_float(x) * kThird); });
}

TEST(Reduction, WhatIsNotDefinedIsKnown) {
  EXPECT_FALSE(is_defined(DataType::kFloat32, ReduceOp::kBitAnd));
  EXPECT_FALSE(is_defined(DataType::kBool, ReduceOp::kAverage));
  EXPECT_TRUE(is_defined(DataType::kInt32, ReduceOp::kAverage));
  EXPECT_TRUE(is_defined(DataType::kComplex64, ReduceOp::kProduct));
  EXPECT_FALSE(is_defined(DataType::kComplex64, ReduceOp::kMax));
  EXPECT_TRUE(is_defined(DataType::kBool, ReduceOp::kSum));
}

}  // namespace
}  // namespace accel::shm::reduction_test
