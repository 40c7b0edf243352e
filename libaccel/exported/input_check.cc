#include "libaccel/exported/input_check.h"

#include <sstream>
#include <utility>

#include <ATen/core/Tensor.h>

#include <accel/error.h>

#include "libaccel/exported/constants.h"
#include "runtime/printable.h"

namespace accel::exported {
namespace {

// Export makes sizes of 0 and 1 special and writes 2 as the least; Python's own check lets them pass too.
constexpr std::int64_t kLeastThatIsMeant = 2;

std::string sizes_text(at::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

Error wrong_input(const std::string& name, const std::string& what) {
  return Error(
      ErrorCode::kInvalidArgument,
      "the input '" + printable(name) + "' of the exported model " + what,
      "give it as the model was exported, or export with dynamic_shapes for this dimension");
}

std::string range_text(const SymbolRange& range) {
  return (range.min ? std::to_string(*range.min) : "any") + " to " +
         (range.max ? std::to_string(*range.max) : "any");
}

}  // namespace

InputCheck::InputCheck(const std::vector<Input>& inputs, std::map<std::string, SymbolRange> ranges)
    : ranges_(std::move(ranges)) {
  for (const Input& input : inputs) {
    Expected& expected = inputs_.emplace_back();
    expected.name = input.name;
    if (input.shape == nullptr) continue;
    expected.is_tensor = true;
    expected.sizes = input.shape->sizes;
    const auto dtype = scalar_type_of(input.shape->dtype);
    expected.is_floating = dtype && c10::isFloatingType(*dtype);
  }
}

void InputCheck::check(const std::vector<c10::IValue>& values) const {
  SymbolValues symbols;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    check_kind(inputs_[i], values[i]);
    if (inputs_[i].is_tensor) bind(inputs_[i], values[i].toTensor().sizes(), symbols);
  }
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    if (inputs_[i].is_tensor) compare(inputs_[i], values[i].toTensor().sizes(), symbols);
}

void InputCheck::check_kind(const Expected& expected, const c10::IValue& value) const {
  if (!expected.is_tensor) {
    if (value.isInt() || value.isDouble() || value.isBool()) return;
    throw wrong_input(expected.name, "is a " + value.tagKind() + ", expected a number");
  }
  if (!value.isTensor() || !value.toTensor().defined())
    throw wrong_input(expected.name, "is missing, expected a tensor");
  const at::Tensor& tensor = value.toTensor();
  if (tensor.is_floating_point() != expected.is_floating)
    throw wrong_input(expected.name,
                      std::string("has the dtype ") + c10::toString(tensor.scalar_type()) +
                          ", expected " + (expected.is_floating ? "a floating one" : "integers"));
  if (static_cast<std::size_t>(tensor.dim()) != expected.sizes.size())
    throw wrong_input(expected.name,
                      "has the shape " + sizes_text(tensor.sizes()) + ", expected " +
                          std::to_string(expected.sizes.size()) + " dimensions");
}

void InputCheck::bind(const Expected& expected,
                      at::IntArrayRef sizes,
                      SymbolValues& symbols) const {
  for (std::size_t i = 0; i < expected.sizes.size(); ++i) {
    const auto* number = std::get_if<SymbolicNumber>(&expected.sizes[i]);
    const std::string* symbol = number == nullptr ? nullptr : number->symbol();
    if (symbol == nullptr || !symbols.try_emplace(*symbol, sizes[i]).second) continue;
    const auto range = ranges_.find(*symbol);
    if (range == ranges_.end()) continue;
    const auto& [min, max] = range->second;
    const bool is_below = min && *min > kLeastThatIsMeant && sizes[i] < *min;
    if (is_below || (max && sizes[i] > *max))
      throw wrong_input(expected.name,
                        "has " + std::to_string(sizes[i]) + " in dimension " + std::to_string(i) +
                            ", where " + printable(*symbol) + " is from " +
                            range_text(range->second));
  }
}

void InputCheck::compare(const Expected& expected,
                         at::IntArrayRef sizes,
                         const SymbolValues& symbols) const {
  for (std::size_t i = 0; i < expected.sizes.size(); ++i) {
    const auto* number = std::get_if<SymbolicNumber>(&expected.sizes[i]);
    const auto wanted = number != nullptr
                            ? number->evaluate(symbols)
                            : std::optional(std::get<std::int64_t>(expected.sizes[i]));
    if (!wanted || *wanted == sizes[i]) continue;
    const std::string symbolic =
        number == nullptr ? "" : " (" + printable(number->text()) + ", by the inputs before it)";
    throw wrong_input(expected.name,
                      "has the shape " + sizes_text(sizes) + ", expected " +
                          std::to_string(*wanted) + symbolic + " in dimension " +
                          std::to_string(i));
  }
}

}  // namespace accel::exported
