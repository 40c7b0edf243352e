#include "libaccel/collectives/shm/data_type.h"

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
      return 4;
    case DataType::kFloat64:
    case DataType::kInt64:
    case DataType::kUInt64:
      break;
  }
  return 8;
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
                                                      "uint64"};
  return kNames[static_cast<int>(type)];
}

std::string_view name_of(ReduceOp op) noexcept {
  constexpr std::string_view kNames[kNumReduceOps] = {
      "sum", "average", "product", "min", "max", "bitwise and", "bitwise or", "bitwise xor"};
  return kNames[static_cast<int>(op)];
}

std::string_view remedy_for(ReduceOp op) noexcept {
  return op == ReduceOp::kAverage
             ? "take the sum and divide it, or convert the tensor to a floating-point type that "
               "holds it"
             : "take the bits as whole numbers: tensor.view() of an integer type";
}

bool is_floating(DataType type) noexcept {
  return type == DataType::kFloat32 || type == DataType::kFloat64 || type == DataType::kFloat16 ||
         type == DataType::kBFloat16;
}

bool is_defined(DataType type, ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::kAverage:
      return is_floating(type);
    case ReduceOp::kBitAnd:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return !is_floating(type);
    default:
      return true;
  }
}

}  // namespace accel::shm
