#include "libaccel/c_interface/arrays.h"

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <accel/error.h>

namespace accel::c_interface {
namespace {

struct Dtype {
  int number;
  at::ScalarType type;
  const char* name;
};
constexpr std::array<Dtype, 12> kDtypes = {{{ACCEL_BOOL, at::kBool, "bool"},
                                            {ACCEL_UINT8, at::kByte, "uint8"},
                                            {ACCEL_INT8, at::kChar, "int8"},
                                            {ACCEL_INT16, at::kShort, "int16"},
                                            {ACCEL_INT32, at::kInt, "int32"},
                                            {ACCEL_INT64, at::kLong, "int64"},
                                            {ACCEL_FLOAT16, at::kHalf, "float16"},
                                            {ACCEL_BFLOAT16, at::kBFloat16, "bfloat16"},
                                            {ACCEL_FLOAT32, at::kFloat, "float32"},
                                            {ACCEL_FLOAT64, at::kDouble, "float64"},
                                            {ACCEL_COMPLEX64, at::kComplexFloat, "complex64"},
                                            {ACCEL_COMPLEX128, at::kComplexDouble, "complex128"}}};

const Dtype& dtype_of(const accel_array& array, const std::string& what) {
  const auto found = std::ranges::find(kDtypes, array.dtype, &Dtype::number);
  if (found != kDtypes.end()) return *found;
  if (array.dtype == ACCEL_NOT_CONTIGUOUS) {
    throw Error(ErrorCode::kInvalidArgument,
                what + " has gaps between its elements",
                "pass a whole array, or a copy of the section");
  }
  throw Error(ErrorCode::kInvalidArgument,
              "the dtype of " + what + " is " + std::to_string(array.dtype) + ", which is none",
              "set it to an ACCEL_* of enum accel_dtype, ACCEL_FLOAT32 say");
}

std::span<const std::int64_t> sizes_of(const accel_array& array, const std::string& what) {
  if (array.num_dims < 0 || array.num_dims > ACCEL_MAX_DIMS) {
    throw Error(ErrorCode::kInvalidArgument,
                what + " has " + std::to_string(array.num_dims) +
                    " dimensions, expected from 0 to " + std::to_string(ACCEL_MAX_DIMS));
  }
  const std::span<const std::int64_t> sizes(array.shape, static_cast<std::size_t>(array.num_dims));
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] >= 0) continue;
    throw Error(ErrorCode::kInvalidArgument,
                "dimension " + std::to_string(i) + " of " + what + " is " +
                    std::to_string(sizes[i]) + ", expected at least 0");
  }
  return sizes;
}

std::string array_shape_text(std::span<const std::int64_t> sizes) {
  std::string text = "[";
  for (const std::int64_t size : sizes)
    text += (text.size() > 1 ? ", " : "") + std::to_string(size);
  return text + "]";
}

std::span<const std::int64_t> sizes_of(const at::Tensor& tensor) {
  return {tensor.sizes().data(), tensor.sizes().size()};
}

}  // namespace

std::string dtype_name(at::ScalarType type) {
  const auto found = std::ranges::find(kDtypes, type, &Dtype::type);
  return found == kDtypes.end() ? c10::toString(type) : found->name;
}

int dtype_number(at::ScalarType type, const std::string& what) {
  const auto found = std::ranges::find(kDtypes, type, &Dtype::type);
  if (found != kDtypes.end()) return found->number;
  throw Error(ErrorCode::kUnsupported,
              what + " is of the type " + dtype_name(type) + ", which has no name in C",
              "export the model with another type");
}

at::Tensor tensor_on(const accel_array& array, const std::string& what) {
  const at::ScalarType type = dtype_of(array, what).type;
  const std::span<const std::int64_t> sizes = sizes_of(array, what);
  const at::IntArrayRef shape(sizes.data(), sizes.size());
  if (std::ranges::find(sizes, 0) != sizes.end()) return at::empty(shape, type);
  if (array.data == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "the data of " + what + " is NULL, and its shape is " + array_shape_text(sizes),
                "point to the first element");
  }
  return at::from_blob(array.data, shape, at::TensorOptions(type));
}

void check_alike(const accel_array& array, const at::Tensor& tensor, const std::string& what) {
  const Dtype& given = dtype_of(array, what);
  if (given.type != tensor.scalar_type()) {
    throw Error(ErrorCode::kInvalidArgument,
                "the memory for " + what + " is of the dtype " + given.name + ", expected " +
                    dtype_name(tensor.scalar_type()),
                "pass memory of that dtype");
  }
  const std::span<const std::int64_t> sizes = sizes_of(array, what);
  if (std::ranges::equal(sizes, tensor.sizes())) return;
  throw Error(ErrorCode::kShapeMismatch,
              "the memory for " + what + " has the shape " + array_shape_text(sizes) +
                  ", expected " + array_shape_text(sizes_of(tensor)),
              "the shape is in C order: an array of Fortran has its dimensions in reverse");
}

void read_into(const accel_array& array, const at::Tensor& tensor, const std::string& what) {
  check_alike(array, tensor, what);
  at::Tensor memory = tensor_on(array, what);
  memory.copy_(tensor.detach());
}

accel_array array_on(const at::Tensor& tensor, const std::string& what) {
  if (tensor.dim() > ACCEL_MAX_DIMS) {
    throw Error(ErrorCode::kUnsupported,
                what + " has " + std::to_string(tensor.dim()) + " dimensions, at most " +
                    std::to_string(ACCEL_MAX_DIMS) + " have room");
  }
  accel_array array{};
  array.data = tensor.data_ptr();
  array.dtype = dtype_number(tensor.scalar_type(), what);
  array.num_dims = static_cast<int>(tensor.dim());
  std::ranges::copy(tensor.sizes(), array.shape);
  return array;
}

}  // namespace accel::c_interface
