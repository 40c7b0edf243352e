#include "libaccel/engine/collectives/reduced_numbers.h"

#include <string>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mul.h>

#include <accel/error.h>

namespace accel {

using shm::DataType;

DataType data_type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kChar:
      return DataType::kInt8;
    case at::kByte:
      return DataType::kUInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kBool:
      return DataType::kBool;
    case at::kUInt16:
      return DataType::kUInt16;
    case at::kUInt32:
      return DataType::kUInt32;
    case at::kUInt64:
      return DataType::kUInt64;
    case at::kComplexHalf:
      return DataType::kComplex32;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    default:
      throw Error(ErrorCode::kUnsupported,
                  std::string("tensors of type ") + at::toString(type) + " cannot be reduced",
                  at::isFloat8Type(type) ? "convert them to float32 first, which holds their values"
                                         : "gather them and reduce the values that they stand for");
  }
}

Numbers::Numbers(const at::Tensor& tensor, const c10d::ReduceOp& op)
    : type(data_type_of(tensor.scalar_type())), count(static_cast<std::size_t>(tensor.numel())) {
  const bool is_scaled = op.op_ == c10d::ReduceOp::PREMUL_SUM;
  const bool is_linear =
      is_scaled || op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG;
  if (tensor.is_complex() && is_linear) {
    type = data_type_of(c10::toRealValueType(tensor.scalar_type()));
    count *= 2;
  }
  if (tensor.is_complex() && !is_linear && op.op_ != c10d::ReduceOp::PRODUCT) {
    throw Error(
        ErrorCode::kUnsupported,
        std::string(name_of(reduce_op_of(op))) + " is not defined for " +
            at::toString(tensor.scalar_type()) + ": complex numbers have no order and no bits",
        "gather them and compute the result from all, or reduce their real and imaginary parts");
  }
  if (is_scaled && !tensor.is_complex() && !tensor.is_floating_point()) {
    throw Error(ErrorCode::kUnsupported,
                std::string("a factor before the sum is for floating-point tensors, not for ") +
                    at::toString(tensor.scalar_type()),
                "multiply the tensor and take SUM");
  }
}

shm::ReduceOp reduce_op_of(const c10d::ReduceOp& op) {
  switch (static_cast<c10d::ReduceOp::RedOpType>(op.op_)) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return shm::ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return shm::ReduceOp::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return shm::ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return shm::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return shm::ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return shm::ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return shm::ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return shm::ReduceOp::kBitXor;
    default:
      throw Error(ErrorCode::kUnsupported,
                  "reduction " + std::to_string(static_cast<int>(op.op_)) +
                      " of c10d is not one of the shared memory backend",
                  "take SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR or PREMUL_SUM");
  }
}

at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op) {
  if (op.op_ != c10d::ReduceOp::PREMUL_SUM) return tensor;
  const auto* factor = dynamic_cast<const c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (factor == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "PREMUL_SUM without a factor",
                "make the operation with c10d::makeNCCLPreMulSum()");
  }
  const at::NoGradGuard no_grad;
  if (!factor->tensor_factor.defined()) return tensor.mul(factor->double_factor);
  return tensor.mul(factor->tensor_factor.item());
}

}  // namespace accel
