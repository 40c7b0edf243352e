// What the operations on a batch do to a single tensor.

#include <string>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <accel/batch.h>
#include <accel/detail/concatenate.h>
#include <accel/error.h>

namespace accel::detail {

std::int64_t rows_of(const at::Tensor& tensor) {
  return tensor.size(0);
}

at::Tensor slice_rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end) {
  return tensor.slice(0, begin, end);
}

at::Tensor concatenate_tensors(const std::vector<at::Tensor>& tensors, std::int64_t dim) {
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.defined()) throw_cannot_concatenate("a tensor is undefined");
  }
  return at::cat(tensors, dim);
}

at::Tensor to_device(const at::Tensor& tensor, at::Device device, bool non_blocking) {
  return tensor.to(device, tensor.scalar_type(), non_blocking);
}

at::Tensor to_fp32(const at::Tensor& tensor) {
  const auto type = tensor.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? tensor.to(at::kFloat) : tensor;
}

at::Tensor pinned(const at::Tensor& tensor) {
  return at::hasCUDA() && tensor.is_cpu() ? tensor.pin_memory() : tensor;
}

TensorInformation information_of(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw Error(ErrorCode::kInvalidArgument,
                "an undefined tensor has neither shape nor type",
                "leave it out, or use std::optional<at::Tensor>");
  }
  return {tensor.sizes().vec(), tensor.scalar_type()};
}

at::Tensor empty_tensor(const TensorInformation& information) {
  return at::empty(information.shape, information.dtype);
}

void throw_no_batch() {
  throw Error(ErrorCode::kInvalidArgument,
              "no batch size: the data hold no tensor with at least one dimension",
              "pass data with a tensor whose first dimension is the batch");
}

void throw_cannot_concatenate(std::string_view why) {
  throw Error(ErrorCode::kInvalidArgument,
              "these batches cannot be concatenated: " + std::string(why),
              "give every batch the same structure");
}

}  // namespace accel::detail
