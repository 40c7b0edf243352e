#include "libaccel/engine/construction/tensor_memory.h"

#include <ATen/ops/empty_strided.h>

namespace accel::construction {

void give_memory(const at::Tensor& tensor, const at::Tensor& values) {
  if (tensor.is_meta() == values.is_meta()) {
    tensor.set_data(values);
    return;
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(values.getIntrusivePtr());
}

at::Tensor without_memory(const at::Tensor& tensor) {
  at::Tensor empty =
      at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
  explain_addresses(empty);
  return empty;
}

at::Tensor memory_like(const at::Tensor& tensor, c10::Device device) {
  return at::empty_strided(
      tensor.sizes(), tensor.strides(), tensor.options().device(device).requires_grad(false));
}

void forbid_addresses(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
}

void explain_addresses(const at::Tensor& tensor) {
  tensor.storage().unsafeGetStorageImpl()->release_data_and_set_meta_custom_data_ptr_error_msg_(
      "this tensor has no memory: it was made under accel::init_empty_weights()");
}

}  // namespace accel::construction
