// Symbols: sizes that are not known when a model is exported, and what they may be.
//
// The file has expressions as sympy prints them, "Mul(Integer(2), Symbol('s77', positive=True, integer=True))", and a range for
// each symbol. A graph's inputs bind symbols: the first dimension that is one gives it its value.
//
// Threads:  value types.
// Source:   sympy.srepr; torch/utils/_sympy/functions.py.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel::exported {

struct SymbolRange {
  std::optional<std::int64_t> min;
  std::optional<std::int64_t> max;
};

using SymbolValues = std::map<std::string, std::int64_t>;

class SymbolicNumber {
 public:
  // Of anything that it does not know it makes a number that nobody can evaluate.
  [[nodiscard]] static SymbolicNumber parse(std::string_view text);

  // The symbol's name when it is one and nothing more.
  [[nodiscard]] const std::string* symbol() const noexcept {
    return operation_ == Operation::kSymbol ? &name_ : nullptr;
  }
  // std::nullopt: a symbol has no value yet, an operation is not known, or the result is no 64-bit number.
  [[nodiscard]] std::optional<std::int64_t> evaluate(const SymbolValues& values) const;
  // "2*s77"
  [[nodiscard]] std::string text() const;

 private:
  enum class Operation { kUnknown, kNumber, kSymbol, kAdd, kMul, kFloorDiv, kMod, kMax, kMin };
  struct Parser;

  Operation operation_ = Operation::kUnknown;
  std::int64_t number_ = 0;
  std::string name_;
  std::vector<SymbolicNumber> operands_;
};

}  // namespace accel::exported
