// ReducedNumbers: what tensors and operations of c10d are for the reductions of ByteGroup.
//
// Threads:  pure functions.
// Errors    throws kUnsupported, with what to do instead: a type that cannot be reduced, an operation that is not known or
//           not for the type.
#pragma once

#include <cstddef>

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "libaccel/engine/shm/numbers/data_type.h"

namespace accel {

[[nodiscard]] shm::DataType data_type_of(at::ScalarType type);

// What a tensor is for reduce_elements(): for sums and averages a complex number is its two parts.
struct Numbers {
  Numbers(const at::Tensor& tensor, const c10d::ReduceOp& op);
  shm::DataType type;
  std::size_t count;
};

// PREMUL_SUM is a sum; of what scaled() returns.
[[nodiscard]] shm::ReduceOp reduce_op_of(const c10d::ReduceOp& op);

// PREMUL_SUM: a new tensor, multiplied by the factor of `op` and rounded to its type. Else the tensor itself.
[[nodiscard]] at::Tensor scaled(const at::Tensor& tensor, const c10d::ReduceOp& op);

}  // namespace accel
