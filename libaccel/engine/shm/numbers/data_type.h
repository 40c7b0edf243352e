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
  kComplex32,  // two of float16; complex numbers are multiplied, and summed as the two numbers that they are
  kComplex64,
  kComplex128,
};
inline constexpr int kNumDataTypes = 16;

enum class ReduceOp : std::uint8_t {
  kSum,
  // The sum, divided once by the number of ranks; not of bool. Of whole numbers the sum wraps around in their type, and the
  // quotient is cut off towards zero, as NCCL's is.
  kAverage,
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
[[nodiscard]] bool is_complex(DataType type) noexcept;

// What to do where `op` is not defined for `type`.
[[nodiscard]] std::string_view remedy_for(DataType type, ReduceOp op) noexcept;

// Whether reduce() knows what `op` of `type` is.
[[nodiscard]] bool is_defined(DataType type, ReduceOp op) noexcept;

}  // namespace accel::shm
