// SymbolicOperator: arithmetic of sizes, as Python does it: what a graph computes from its inputs' shapes.
//
// Threads:  pure functions.
// Source:   _SYM_OPS of torch/_export/serde/serialize.py.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include <ATen/core/ivalue.h>

namespace accel::exported {

enum class SymbolicOperator : std::uint8_t {
  kAdd,
  kSub,
  kMul,
  kFloorDiv,
  kTrueDiv,
  kMod,
  kPow,
  kNeg,
  kPos,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kNot,
  kLeftShift,
  kRightShift,
  kMax,
  kMin,
  kSum,
  kIte,
  kInt,
  kFloat,
  kSqrt,
  kTrunc,
  kFloor,
  kCeil,
};

// Of a node's target: "_operator.add", "math.trunc", "torch.sym_max".
[[nodiscard]] std::optional<SymbolicOperator> symbolic_operator(std::string_view target);

// Throws c10::Error for another number of values, a division by zero, and what is no number.
[[nodiscard]] c10::IValue evaluate(SymbolicOperator op, std::span<const c10::IValue> values);

}  // namespace accel::exported
