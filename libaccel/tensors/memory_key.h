// MemoryKey: which tensors are one piece of memory seen the same way, as tied weights are.
//
// Threads:  a value type.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

using MemoryKey =
    std::tuple<const void*, at::ScalarType, std::vector<std::int64_t>, std::vector<std::int64_t>>;

[[nodiscard]] inline MemoryKey memory_key(const at::Tensor& tensor) {
  // Tensors of the meta device have no address: they are tied when they are one object.
  const void* place = tensor.is_meta() ? static_cast<const void*>(tensor.unsafeGetTensorImpl())
                                       : tensor.const_data_ptr();
  return {place, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

// Tensors without elements are never tied: they all lie at the same address.
[[nodiscard]] inline bool may_be_tied(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.numel() > 0;
}

}  // namespace accel
