#include "libaccel/exported/constants.h"

#include <ATen/ScalarOps.h>

namespace accel::exported {
namespace {

std::optional<c10::Layout> layout_of(int code) {
  switch (code) {
    case 1:
      return c10::Layout::Sparse;
    case 2:
      return c10::Layout::SparseCsr;
    case 3:
      return c10::Layout::SparseCsc;
    case 4:
      return c10::Layout::SparseBsr;
    case 5:
      return c10::Layout::SparseBsc;
    case 6:
      return c10::Layout::Mkldnn;
    case 7:
      return c10::Layout::Strided;
    default:
      return std::nullopt;
  }
}

std::optional<c10::MemoryFormat> memory_format_of(int code) {
  switch (code) {
    case 1:
      return c10::MemoryFormat::Contiguous;
    case 2:
      return c10::MemoryFormat::ChannelsLast;
    case 3:
      return c10::MemoryFormat::ChannelsLast3d;
    case 4:
      return c10::MemoryFormat::Preserve;
    default:
      return std::nullopt;
  }
}

constexpr int kMostCodes = 64;

// The code that `value_of` turns into the value.
template <typename Value, typename ValueOf>
std::optional<int> schema_code_of(Value value, const ValueOf& value_of) {
  for (int code = 0; code < kMostCodes; ++code)
    if (value_of(code) == value) return code;
  return std::nullopt;
}

struct ConstantVisitor {
  using Result = std::optional<c10::IValue>;

  Result operator()(const NoneArgument&) const { return c10::IValue(); }
  Result operator()(const ValueArgument&) const { return std::nullopt; }
  Result operator()(const OtherArgument&) const { return std::nullopt; }
  Result operator()(const GraphArgument&) const { return std::nullopt; }
  Result operator()(const TensorList& list) const {
    if (!list.ids.empty()) return std::nullopt;
    return c10::IValue(c10::List<at::Tensor>());
  }
  Result operator()(const NumberList& list) const {
    c10::List<std::int64_t> numbers;
    for (const NumberItem& item : list.items) {
      if (item.id != kNoValue) return std::nullopt;
      numbers.push_back(item.number);
    }
    return c10::IValue(std::move(numbers));
  }
  Result operator()(const std::complex<double>& number) const {
    return c10::IValue(c10::complex<double>(number.real(), number.imag()));
  }
  Result operator()(const std::vector<bool>& flags) const {
    c10::List<bool> list;
    for (const bool flag : flags) list.push_back(flag);
    return c10::IValue(std::move(list));
  }
  Result operator()(const DtypeArgument& dtype) const {
    const auto type = scalar_type_of(dtype.code);
    if (!type) return std::nullopt;
    return c10::IValue(static_cast<std::int64_t>(*type));
  }
  Result operator()(const LayoutArgument& layout) const {
    const auto known = layout_of(layout.code);
    if (!known) return std::nullopt;
    return c10::IValue(static_cast<std::int64_t>(*known));
  }
  Result operator()(const MemoryFormatArgument& format) const {
    const auto known = memory_format_of(format.code);
    if (!known) return std::nullopt;
    return c10::IValue(static_cast<std::int64_t>(*known));
  }
  Result operator()(const DeviceArgument& device) const {
    try {
      c10::Device known(device.type);
      if (device.index) known.set_index(static_cast<c10::DeviceIndex>(*device.index));
      return c10::IValue(known);
    } catch (const c10::Error&) {
      return std::nullopt;  // no device of LibTorch
    }
  }
  template <typename T>
  Result operator()(const T& value) const {
    return c10::IValue(value);
  }
};

c10::IValue adapted_list(c10::IValue value, const c10::TypePtr& element) {
  const auto kind = element->kind();
  if (kind == c10::TypeKind::FloatType && value.isIntList()) {
    c10::List<double> fractions;
    for (const std::int64_t number : value.toIntVector())
      fractions.push_back(static_cast<double>(number));
    return fractions;
  }
  // An empty list has the type of whatever the exporter guessed.
  const bool is_empty = value.isList() && value.toListRef().empty();
  if (!is_empty) return value;
  if (kind == c10::TypeKind::TensorType) return c10::List<at::Tensor>();
  if (kind == c10::TypeKind::OptionalType) return c10::List<std::optional<at::Tensor>>();
  if (kind == c10::TypeKind::FloatType) return c10::List<double>();
  if (kind == c10::TypeKind::BoolType) return c10::List<bool>();
  if (kind == c10::TypeKind::IntType) return c10::List<std::int64_t>();
  return value;
}

}  // namespace

std::optional<at::ScalarType> scalar_type_of(int dtype) {
  switch (dtype) {
    case 1:
      return at::kByte;
    case 2:
      return at::kChar;
    case 3:
      return at::kShort;
    case 4:
      return at::kInt;
    case 5:
      return at::kLong;
    case 6:
      return at::kHalf;
    case 7:
      return at::kFloat;
    case 8:
      return at::kDouble;
    case 9:
      return at::kComplexHalf;
    case 10:
      return at::kComplexFloat;
    case 11:
      return at::kComplexDouble;
    case 12:
      return at::kBool;
    case 13:
      return at::kBFloat16;
    case 28:
      return at::kUInt16;
    case 29:
      return at::kFloat8_e4m3fn;
    case 30:
      return at::kFloat8_e5m2;
    case 31:
      return at::kFloat8_e4m3fnuz;
    case 32:
      return at::kFloat8_e5m2fnuz;
    default:
      return std::nullopt;
  }
}

std::optional<int> dtype_code(at::ScalarType dtype) {
  return schema_code_of(dtype, scalar_type_of);
}

std::optional<int> layout_code(c10::Layout layout) {
  return schema_code_of(layout, layout_of);
}

std::optional<int> memory_format_code(c10::MemoryFormat format) {
  return schema_code_of(format, memory_format_of);
}

c10::TypePtr needed_type(const c10::TypePtr& type) {
  if (const auto optional = type->cast<c10::OptionalType>()) return optional->getElementType();
  return type;
}

std::optional<c10::IValue> constant_of(const Argument& argument) {
  return std::visit(ConstantVisitor{}, argument);
}

// Without the dispatcher: in a model that is made within init_empty_weights() it would get its memory later, as a plain tensor.
at::Tensor wrapped_number(const c10::IValue& number) {
  return at::native::wrapped_scalar_tensor(number.toScalar());
}

c10::IValue adapted(c10::IValue value, const c10::Argument& to) {
  if (value.isNone()) return value;
  const c10::TypePtr type = needed_type(to.type());
  const bool is_number =
      value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble();
  if (is_number && type->kind() == c10::TypeKind::TensorType) return wrapped_number(value);
  if (value.isInt() && type->kind() == c10::TypeKind::FloatType)
    return static_cast<double>(value.toInt());
  if (value.isBool() && type->kind() == c10::TypeKind::IntType)
    return static_cast<std::int64_t>(value.toBool());
  const auto list = type->cast<c10::ListType>();
  if (!list) return value;
  if (is_number) {  // "int[2] stride=1": one number stands for all
    const std::size_t count = static_cast<std::size_t>(to.N().value_or(1));
    if (value.isInt() && list->getElementType()->kind() == c10::TypeKind::IntType)
      return std::vector<std::int64_t>(count, value.toInt());
    if (list->getElementType()->kind() == c10::TypeKind::FloatType)
      return std::vector<double>(count, value.toScalar().toDouble());
  }
  return adapted_list(std::move(value), list->getElementType());
}

}  // namespace accel::exported
