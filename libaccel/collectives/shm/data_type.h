// DataType, ReduceOp: what the collectives of one node compute with.
//
// Threads:  pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace accel::shm {

enum class DataType : std::uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt8,
  kUInt8,
  kInt16,
  kInt32,
  kInt64,
  kBool,
  kUInt16,
  kUInt32,
  kUInt64,
};
inline constexpr int kNumDataTypes = 13;

enum class ReduceOp : std::uint8_t {
  kSum,
  kAverage,  // the sum, divided once by the number of ranks; floating point only
  kProduct,
  kMin,  // NaN when one of the operands is NaN
  kMax,
  kBitAnd,  // whole numbers and bool only
  kBitOr,
  kBitXor,
};
inline constexpr int kNumReduceOps = 8;

[[nodiscard]] std::size_t size_of(DataType type) noexcept;  // bytes of one element
[[nodiscard]] std::string_view name_of(DataType type) noexcept;
[[nodiscard]] std::string_view name_of(ReduceOp op) noexcept;
[[nodiscard]] bool is_floating(DataType type) noexcept;

// What to do where `op` is not defined for a type.
[[nodiscard]] std::string_view remedy_for(ReduceOp op) noexcept;

// Whether reduce() knows what `op` of `type` is.
[[nodiscard]] bool is_defined(DataType type, ReduceOp op) noexcept;

}  // namespace accel::shm
