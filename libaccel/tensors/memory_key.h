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
  // Tensors of the meta device have no address, and those whose memory is away for now: they are tied when they are one object.
  const bool is_away =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() == nullptr;
  const void* place = tensor.is_meta() || is_away
                          ? static_cast<const void*>(tensor.unsafeGetTensorImpl())
                          : tensor.const_data_ptr();
  return {place, tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec()};
}

// Tensors without elements are never tied: they all lie at the same address.
[[nodiscard]] inline bool may_be_tied(const at::Tensor& tensor) {
  return tensor.layout() == at::kStrided && tensor.numel() > 0;
}

}  // namespace accel
