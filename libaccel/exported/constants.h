// Constants: what the file's arguments are for LibTorch's operators.
//
// Threads:  pure functions.
#pragma once

#include <optional>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include "libaccel/exported/graph.h"

namespace accel::exported {

// std::nullopt: LibTorch has none, or the file's is not known.
[[nodiscard]] std::optional<at::ScalarType> scalar_type_of(int dtype);

// The file's numbers of LibTorch's dtypes, layouts and memory formats; std::nullopt: it has none.
[[nodiscard]] std::optional<int> dtype_code(at::ScalarType dtype);
[[nodiscard]] std::optional<int> layout_code(c10::Layout layout);
[[nodiscard]] std::optional<int> memory_format_code(c10::MemoryFormat format);

// A type without what makes it optional.
[[nodiscard]] c10::TypePtr needed_type(const c10::TypePtr& type);

// The value of an argument that is known; std::nullopt: it holds values, or is of no kind that an operator takes. Where the file
// names a device, that device.
[[nodiscard]] std::optional<c10::IValue> constant_of(const Argument& argument);

// As the operator takes it: a number where it takes a tensor, an integer where it takes a fraction, and so on.
[[nodiscard]] c10::IValue adapted(c10::IValue value, const c10::Argument& to);

// A number as operators that take tensors get it: of no influence on the dtype of the result.
[[nodiscard]] at::Tensor wrapped_number(const c10::IValue& number);

}  // namespace accel::exported
