#include "libaccel/exporting/recorded_argument.h"

#include <ATen/core/jit_type.h>

#include <accel/error.h>

#include "libaccel/exported/constants.h"

namespace accel::exporting {
namespace {

using exported::Argument;
using exported::DeviceArgument;
using exported::DtypeArgument;
using exported::LayoutArgument;
using exported::MemoryFormatArgument;
using exported::NoneArgument;
using exported::TensorList;
using exported::ValueArgument;

// A number that the operator means as something else: its schema says so.
std::optional<Argument> named_number(c10::TypeKind kind, std::int64_t number) {
  if (kind == c10::TypeKind::ScalarTypeType) {
    const auto code = exported::dtype_code(static_cast<at::ScalarType>(number));
    if (code) return DtypeArgument{*code};
  }
  if (kind == c10::TypeKind::LayoutType) {
    const auto code = exported::layout_code(static_cast<at::Layout>(number));
    if (code) return LayoutArgument{*code};
  }
  if (kind == c10::TypeKind::MemoryFormatType) {
    const auto code = exported::memory_format_code(static_cast<at::MemoryFormat>(number));
    if (code) return MemoryFormatArgument{*code};
  }
  return std::nullopt;
}

DeviceArgument device_argument(const c10::Device& device) {
  DeviceArgument argument{.type = c10::DeviceTypeName(device.type(), /*lower_case=*/true)};
  if (device.has_index()) argument.index = device.index();
  return argument;
}

// std::nullopt: a list of something else.
std::optional<Argument> list_of(const c10::IValue& value, const ArgumentOfTensor& argument_of) {
  if (value.isIntList()) return Argument(value.toIntVector());
  if (value.isDoubleList()) return Argument(value.toDoubleVector());
  if (value.isBoolList()) {
    const auto flags = value.toBoolList();
    return Argument(std::vector<bool>(flags.begin(), flags.end()));
  }
  TensorList tensors;
  for (const c10::IValue& item : value.toListRef()) {
    const bool is_none = item.isNone() || (item.isTensor() && !item.toTensor().defined());
    if (!is_none && !item.isTensor()) return std::nullopt;
    if (is_none) {
      tensors.ids.push_back(exported::kNoValue);
      continue;
    }
    const Argument argument = argument_of(item.toTensor());
    const auto* known = std::get_if<ValueArgument>(&argument);
    if (known == nullptr) return std::nullopt;
    tensors.ids.push_back(known->id);
  }
  return tensors;
}

std::optional<Argument> scalar_of(const c10::IValue& value, c10::TypeKind kind) {
  if (value.isInt()) {
    if (auto named = named_number(kind, value.toInt())) return named;
    return Argument(value.toInt());
  }
  if (value.isBool()) return Argument(value.toBool());
  if (value.isDouble()) return Argument(value.toDouble());
  if (value.isString()) return Argument(value.toStringRef());
  if (value.isComplexDouble()) {
    const c10::complex<double> number = value.toComplexDouble();
    return Argument(std::complex<double>(number.real(), number.imag()));
  }
  if (value.isDevice()) return Argument(device_argument(value.toDevice()));
  return std::nullopt;
}

}  // namespace

std::string operator_text(const c10::FunctionSchema& schema) {
  return schema.overload_name().empty() ? schema.name()
                                        : schema.name() + "." + schema.overload_name();
}

bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  if (!argument.default_value()) return false;
  const c10::IValue& otherwise = *argument.default_value();
  if (value.isTensor() && !value.toTensor().defined()) return otherwise.isNone();
  // Tensors are compared by their values: none is a default.
  if (value.isTensor() || otherwise.isTensor()) return false;
  if (value.isList() && !value.isIntList() && !value.isDoubleList() && !value.isBoolList())
    return false;
  if (value.tagKind() != otherwise.tagKind()) return false;
  return value == otherwise;
}

Argument recorded_argument(const c10::FunctionSchema& schema,
                           const c10::Argument& to,
                           const c10::IValue& value,
                           const ArgumentOfTensor& argument_of) {
  if (value.isNone()) return NoneArgument{};
  if (value.isTensor())
    return value.toTensor().defined() ? argument_of(value.toTensor()) : NoneArgument{};
  const auto kind = exported::needed_type(to.real_type())->kind();
  const auto argument = value.isList() ? list_of(value, argument_of) : scalar_of(value, kind);
  if (!argument)
    throw Error(ErrorCode::kUnsupported,
                "the operator " + operator_text(schema) + " takes a " + value.tagKind() + " as " +
                    to.name() + ", which a graph cannot hold",
                "call it without " + to.name());
  return *argument;
}

}  // namespace accel::exporting
