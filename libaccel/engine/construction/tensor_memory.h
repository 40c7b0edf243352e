// TensorMemory: gives a tensor of the meta device memory, and takes it away, while it stays the same object, so that all
// who hold it (modules, optimizers) see it.
//
// set_data() refuses to go between meta and other devices. What it does is done here without that check: a tensor without
// history has nothing else that would have to fit.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

namespace accel::construction {

// Makes `tensor` have the memory, sizes, strides and dtype of `values`. Ordinary tensors: set_data().
void give_memory(const at::Tensor& tensor, const at::Tensor& values);

// The same sizes, strides and dtype without memory, on the meta device.
[[nodiscard]] at::Tensor without_memory(const at::Tensor& tensor);

// Ordinary memory of its sizes and strides for a tensor of the meta device, not initialised.
[[nodiscard]] at::Tensor memory_like(const at::Tensor& tensor, c10::Device device = c10::kCPU);

// Lets code that takes the tensor's address throw, instead of reading at nullptr. Some of LibTorch's in-place operators
// look at addresses of the meta device, too; explain_addresses(), which also says why, forbids them that.
// Requires: a tensor on the meta device.
void forbid_addresses(const at::Tensor& tensor);
void explain_addresses(const at::Tensor& tensor);

}  // namespace accel::construction
