// Arrays: memory of the program as tensors, and back.
//
// Threads:  functions without state.
#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include <accel/c/accel.h>

namespace accel::c_interface {

// A tensor on the memory of `array`, which is borrowed. `what` names it in errors. Throws kInvalidArgument for a dtype that there
// is not, sizes below 0, more than ACCEL_MAX_DIMS dimensions, or no memory.
[[nodiscard]] at::Tensor tensor_on(const accel_array& array, const std::string& what);

// "float32"; the name of LibTorch for what C has none for.
[[nodiscard]] std::string dtype_name(at::ScalarType type);
// The accel_dtype. Throws kUnsupported, naming `what`, for what C has none for.
[[nodiscard]] int dtype_number(at::ScalarType type, const std::string& what);

// Throws kInvalidArgument unless the dtype of `array` is that of the tensor, kShapeMismatch unless the shape is.
void check_alike(const accel_array& array, const at::Tensor& tensor, const std::string& what);

// Copies the values of the tensor, wherever it is, into the memory of `array`. Throws what the two above throw.
void read_into(const accel_array& array, const at::Tensor& tensor, const std::string& what);

// The memory of a contiguous tensor on the CPU. Throws kUnsupported for a dtype or a number of dimensions that C has no name for.
[[nodiscard]] accel_array array_on(const at::Tensor& tensor, const std::string& what);

}  // namespace accel::c_interface
