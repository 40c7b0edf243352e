#include "libaccel/exported/symbolic_operator.h"

#include <array>
#include <cmath>
#include <utility>

#include <c10/util/Exception.h>

namespace accel::exported {
namespace {

using enum SymbolicOperator;

constexpr std::array<std::pair<std::string_view, SymbolicOperator>, 33> kOperators{{
    {"_operator.add", kAdd},
    {"_operator.sub", kSub},
    {"_operator.mul", kMul},
    {"_operator.floordiv", kFloorDiv},
    {"_operator.truediv", kTrueDiv},
    {"_operator.mod", kMod},
    {"_operator.pow", kPow},
    {"_operator.neg", kNeg},
    {"_operator.pos", kPos},
    {"_operator.eq", kEq},
    {"_operator.ne", kNe},
    {"_operator.lt", kLt},
    {"_operator.le", kLe},
    {"_operator.gt", kGt},
    {"_operator.ge", kGe},
    {"_operator.and_", kAnd},
    {"_operator.or_", kOr},
    {"_operator.not_", kNot},
    {"_operator.lshift", kLeftShift},
    {"_operator.rshift", kRightShift},
    {"torch.sym_not", kNot},
    {"torch.sym_max", kMax},
    {"torch.sym_min", kMin},
    {"torch.sym_sum", kSum},
    {"torch.sym_ite", kIte},
    {"torch.sym_int", kInt},
    {"torch.sym_float", kFloat},
    {"torch.sym_sqrt", kSqrt},
    {"torch._sym_sqrt", kSqrt},
    {"math.trunc", kTrunc},
    {"math.floor", kFloor},
    {"math.ceil", kCeil},
    {"math.sqrt", kSqrt},
}};

double fraction(const c10::IValue& value) {
  if (value.isDouble()) return value.toDouble();
  if (value.isBool()) return value.toBool() ? 1 : 0;
  return static_cast<double>(value.toInt());
}

std::int64_t integer(const c10::IValue& value) {
  return value.isBool() ? static_cast<std::int64_t>(value.toBool()) : value.toInt();
}

bool truth(const c10::IValue& value) {
  return value.isBool() ? value.toBool() : fraction(value) != 0;
}

c10::IValue power(const c10::IValue& base, const c10::IValue& exponent) {
  if (base.isDouble() || exponent.isDouble() || integer(exponent) < 0)
    return std::pow(fraction(base), fraction(exponent));
  std::int64_t result = 1;
  for (std::int64_t i = 0; i < integer(exponent); ++i)
    TORCH_CHECK(!__builtin_mul_overflow(result, integer(base), &result), "a size is too large");
  return result;
}

template <typename Number>
c10::IValue compare(SymbolicOperator op, Number a, Number b) {
  switch (op) {
    case kEq:
      return a == b;
    case kNe:
      return a != b;
    case kLt:
      return a < b;
    case kLe:
      return a <= b;
    case kGt:
      return a > b;
    case kGe:
      return a >= b;
    case kMax:
      return a < b ? b : a;
    default:
      return b < a ? b : a;
  }
}

c10::IValue of_fractions(SymbolicOperator op, double a, double b) {
  switch (op) {
    case kAdd:
      return a + b;
    case kSub:
      return a - b;
    case kMul:
      return a * b;
    case kFloorDiv:
      return std::floor(a / b);
    case kMod:
      return a - std::floor(a / b) * b;
    default:
      return compare(op, a, b);
  }
}

c10::IValue of_integers(SymbolicOperator op, std::int64_t a, std::int64_t b) {
  std::int64_t result = 0;
  bool overflows = false;
  switch (op) {
    case kAdd:
      overflows = __builtin_add_overflow(a, b, &result);
      break;
    case kSub:
      overflows = __builtin_sub_overflow(a, b, &result);
      break;
    case kMul:
      overflows = __builtin_mul_overflow(a, b, &result);
      break;
    case kFloorDiv:
    case kMod: {
      TORCH_CHECK(b != 0 && !(b == -1 && a == INT64_MIN), "a size is divided by ", b);
      const std::int64_t quotient = a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
      result = op == kFloorDiv ? quotient : a - quotient * b;
      break;
    }
    case kAnd:
      return a & b;
    case kOr:
      return a | b;
    case kLeftShift:
    case kRightShift:
      TORCH_CHECK(b >= 0 && b < 63, "a size is shifted by ", b);
      result =
          op == kLeftShift ? static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b) : a >> b;
      break;
    default:
      return compare(op, a, b);
  }
  TORCH_CHECK(!overflows, "a size is too large");
  return result;
}

c10::IValue of_one(SymbolicOperator op, const c10::IValue& value) {
  switch (op) {
    case kNeg:
      return value.isDouble() ? c10::IValue(-value.toDouble()) : c10::IValue(-integer(value));
    case kPos:
      return value;
    case kNot:
      return !truth(value);
    case kFloat:
      return fraction(value);
    case kSqrt:
      return std::sqrt(fraction(value));
    default:
      break;
  }
  if (!value.isDouble()) return integer(value);
  const double number = op == kFloor  ? std::floor(value.toDouble())
                        : op == kCeil ? std::ceil(value.toDouble())
                                      : std::trunc(value.toDouble());
  TORCH_CHECK(std::abs(number) < 9e18, "a size is ", number);
  return static_cast<std::int64_t>(number);
}

bool takes_one(SymbolicOperator op) {
  switch (op) {
    case kNeg:
    case kPos:
    case kNot:
    case kInt:
    case kFloat:
    case kSqrt:
    case kTrunc:
    case kFloor:
    case kCeil:
      return true;
    default:
      return false;
  }
}

}  // namespace

std::optional<SymbolicOperator> symbolic_operator(std::string_view target) {
  for (const auto& [name, op] : kOperators)
    if (name == target) return op;
  return std::nullopt;
}

c10::IValue evaluate(SymbolicOperator op, std::span<const c10::IValue> values) {
  if (op == kSum) {
    c10::IValue sum = std::int64_t{0};
    for (const c10::IValue& value : values) sum = of_integers(kAdd, integer(sum), integer(value));
    return sum;
  }
  if (op == kIte) {
    TORCH_CHECK(values.size() == 3, "a choice of sizes takes 3 values, got ", values.size());
    return truth(values[0]) ? values[1] : values[2];
  }
  const std::size_t expected = takes_one(op) ? 1 : 2;
  TORCH_CHECK(values.size() == expected,
              "arithmetic of sizes takes ",
              expected,
              " values, got ",
              values.size());
  if (expected == 1) return of_one(op, values[0]);
  const c10::IValue& a = values[0];
  const c10::IValue& b = values[1];
  if ((op == kAnd || op == kOr) && a.isBool() && b.isBool())
    return op == kAnd ? a.toBool() && b.toBool() : a.toBool() || b.toBool();
  if (op == kTrueDiv) return fraction(a) / fraction(b);
  if (op == kPow) return power(a, b);
  if (a.isDouble() || b.isDouble()) return of_fractions(op, fraction(a), fraction(b));
  return of_integers(op, integer(a), integer(b));
}

}  // namespace accel::exported
