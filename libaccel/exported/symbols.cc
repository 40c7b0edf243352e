#include "libaccel/exported/symbols.h"

#include <algorithm>

#include "runtime/text/number_text.h"

namespace accel::exported {
namespace {

constexpr int kDeepest = 32;  // operations within each other

// Rounded towards minus infinity, as Python's // and %.
std::optional<std::int64_t> floor_quotient(std::int64_t a, std::int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return std::nullopt;
  return a / b - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

}  // namespace

// name(part, part, key=value): a part is an operation, a number or a quoted text.
struct SymbolicNumber::Parser {
  std::string_view rest;

  bool take(char c) {
    skip_blanks();
    if (rest.empty() || rest.front() != c) return false;
    rest.remove_prefix(1);
    return true;
  }
  void skip_blanks() {
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
  }
  std::string_view word() {
    skip_blanks();
    const auto end = std::find_if(rest.begin(), rest.end(), [](char c) {
      return !((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               c == '_' || c == '-' || c == '.');
    });
    const auto length = static_cast<std::size_t>(end - rest.begin());
    const std::string_view found = rest.substr(0, length);
    rest.remove_prefix(length);
    return found;
  }
  std::optional<std::string> quoted() {
    if (!take('\'')) return std::nullopt;
    const std::size_t end = rest.find('\'');
    if (end == std::string_view::npos) return std::nullopt;
    std::string text(rest.substr(0, end));
    rest.remove_prefix(end + 1);
    return text;
  }

  static Operation operation_of(std::string_view name) {
    if (name == "Integer") return Operation::kNumber;
    if (name == "Symbol") return Operation::kSymbol;
    if (name == "Add") return Operation::kAdd;
    if (name == "Mul") return Operation::kMul;
    if (name == "FloorDiv" || name == "CleanDiv") return Operation::kFloorDiv;
    if (name == "Mod" || name == "PythonMod") return Operation::kMod;
    if (name == "Max") return Operation::kMax;
    if (name == "Min") return Operation::kMin;
    return Operation::kUnknown;
  }

  // False: it is not written so.
  bool parts_of(SymbolicNumber& out, int depth) {
    while (!take(')')) {
      if (const auto text = quoted()) {
        out.name_ = *text;
      } else {
        SymbolicNumber part;
        std::string_view name;
        if (!number(part, name, depth + 1)) return false;
        if (take('=')) {
          word();  // positive=True
        } else {
          out.operands_.push_back(std::move(part));
        }
      }
      take(',');
      if (rest.empty()) return false;
    }
    return true;
  }

  bool number(SymbolicNumber& out, std::string_view& name, int depth) {
    if (depth > kDeepest) return false;
    name = word();
    if (name.empty()) return false;
    if (const auto value = number_of<std::int64_t>(name)) {
      out.operation_ = Operation::kNumber;
      out.number_ = *value;
      return true;
    }
    if (!take('(')) return true;  // a key
    out.operation_ = operation_of(name);
    return parts_of(out, depth);
  }
};

SymbolicNumber SymbolicNumber::parse(std::string_view text) {
  SymbolicNumber out;
  Parser parser{text};
  std::string_view name;
  if (!parser.number(out, name, 0) || !parser.rest.empty()) return {};
  return out;
}

std::optional<std::int64_t> SymbolicNumber::evaluate(const SymbolValues& values) const {
  if (operation_ == Operation::kSymbol) {
    const auto found = values.find(name_);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  }
  if (operation_ == Operation::kNumber && operands_.empty()) return number_;
  if (operation_ == Operation::kUnknown || operands_.empty()) return std::nullopt;
  std::optional<std::int64_t> result = operands_[0].evaluate(values);
  for (std::size_t i = 1; i < operands_.size() && result; ++i) {
    const auto next = operands_[i].evaluate(values);
    if (!next) return std::nullopt;
    std::int64_t value = 0;
    switch (operation_) {
      case Operation::kAdd:
        if (__builtin_add_overflow(*result, *next, &value)) return std::nullopt;
        result = value;
        break;
      case Operation::kMul:
        if (__builtin_mul_overflow(*result, *next, &value)) return std::nullopt;
        result = value;
        break;
      case Operation::kFloorDiv:
        result = floor_quotient(*result, *next);
        break;
      case Operation::kMod: {
        const auto quotient = floor_quotient(*result, *next);
        result = quotient ? std::optional(*result - *quotient * *next) : std::nullopt;
        break;
      }
      case Operation::kMax:
        result = std::max(*result, *next);
        break;
      case Operation::kMin:
        result = std::min(*result, *next);
        break;
      default:
        return std::nullopt;
    }
  }
  return result;
}

std::string SymbolicNumber::text() const {
  const auto listed = [&](const std::string& separator) {
    std::string all;
    for (const SymbolicNumber& operand : operands_)
      all += (all.empty() ? "" : separator) + operand.text();
    return all;
  };
  switch (operation_) {
    case Operation::kNumber:
      return operands_.empty() ? std::to_string(number_) : operands_[0].text();
    case Operation::kSymbol:
      return name_;
    case Operation::kAdd:
      return "(" + listed(" + ") + ")";
    case Operation::kMul:
      return listed("*");
    case Operation::kFloorDiv:
      return "(" + listed(" // ") + ")";
    case Operation::kMod:
      return "(" + listed(" % ") + ")";
    case Operation::kMax:
      return "max(" + listed(", ") + ")";
    case Operation::kMin:
      return "min(" + listed(", ") + ")";
    case Operation::kUnknown:
      break;
  }
  return "?";
}

}  // namespace accel::exported
