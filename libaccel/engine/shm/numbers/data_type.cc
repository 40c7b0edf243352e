#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel::shm {

std::size_t size_of(DataType type) noexcept {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUInt8:
    case DataType::kBool:
      return 1;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kInt16:
    case DataType::kUInt16:
      return 2;
    case DataType::kFloat32:
    case DataType::kInt32:
    case DataType::kUInt32:
    case DataType::kComplex32:
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kUInt64:
    case DataType::kComplex64:
      return 8;
    case DataType::kComplex128:
      break;
  }
  return 16;
}

std::string_view name_of(DataType type) noexcept {
  constexpr std::string_view kNames[kNumDataTypes] = {"float32",
                                                      "float64",
                                                      "float16",
                                                      "bfloat16",
                                                      "int8",
                                                      "uint8",
                                                      "int16",
                                                      "int32",
                                                      "int64",
                                                      "bool",
                                                      "uint16",
                                                      "uint32",
                                                      "uint64",
                                                      "complex32",
                                                      "complex64",
                                                      "complex128"};
  return kNames[static_cast<int>(type)];
}

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view kNames[kNumReduceOps] = {
      "sum", "average", "product", "min", "max", "bitwise and", "bitwise or", "bitwise xor"};
  return kNames[static_cast<int>(op)];
}

std::string_view remedy_for(DataType type, ReduceOp op) noexcept {
  if (is_complex(type)) return "gather them and compute the result from all";
  return op == ReduceOp::kAverage
             ? "convert the tensor to whole numbers or floating-point ones first"
             : "take the bits as whole numbers: tensor.view() of an integer type";
}

bool is_floating(DataType type) noexcept {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

bool is_complex(DataType type) noexcept {
  return type == DataType::kComplex32 || type == DataType::kComplex64 ||
         type == DataType::kComplex128;
}

bool is_defined(DataType type, ReduceOp op) noexcept {
  if (is_complex(type)) return op == ReduceOp::kProduct;
  switch (op) {
    case ReduceOp::kAverage:
      return type != DataType::kBool;
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !is_floating(type);
    default:
      return true;
  }
}

}  // namespace accel::shm
