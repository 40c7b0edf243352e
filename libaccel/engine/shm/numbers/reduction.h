// Reduction: one result out of the same elements of several ranks.
//
// The order is that of the operands, element by element: ((x0 op x1) op x2) ... So every rank that reduces the same
// operands gets the same bits, and so does every run. float16 and bfloat16 are accumulated in float and rounded once.
// Whole numbers wrap around, and their averages are cut off towards zero; bool is "or" for sum and max, "and" for product and
// min.
//
// Threads:  a pure function.
// Cost:     reads each operand once and writes the result once.
#pragma once

#include <cstddef>
#include <span>

#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel::shm {

// Bytes that stay in the first caches while they are read, reduced and written to other ranks.
inline constexpr std::size_t kReductionBlock = 32 * 1024;

// `count` elements each, aligned to their type. `out` may be one of the operands. Requires is_defined(type, op) and at
// least one operand.
void reduce_elements(std::span<const std::byte* const> operands,
                     std::size_t count,
                     DataType type,
                     ReduceOp op,
                     std::byte* out) noexcept;

// The sum of the elements, each multiplied by `factor` in the type it is accumulated in and rounded to its own first.
// Otherwise as reduce_elements(). Requires is_floating(type).
void sum_scaled(std::span<const std::byte* const> operands,
                std::size_t count,
                DataType type,
                double factor,
                std::byte* out) noexcept;

// What makes an average of the sum of `divisor` ranks. Requires is_defined(type, ReduceOp::kAverage).
void divide_elements(std::byte* sums,
                     std::size_t count,
                     DataType type,
                     std::size_t divisor) noexcept;

}  // namespace accel::shm
