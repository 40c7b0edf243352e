// OperatorHook: what runs for operators with one of LibTorch's dispatch keys, and tensors that have it.
//
// Registered for the life of the process, when it is first needed and not when the program is loaded: programs that do not need it keep LibTorch as it is.
// Never taken back: operators may run until the process ends.
//
//   hook_operators("_", kKey).fallback(torch::CppFunction::makeFromBoxedFunction<&run>());
//
// Threads:  any; LibTorch locks. What registers is called once (a static of the caller).
#pragma once

#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/library.h>

namespace accel::interception {

// `operators`: a namespace of them, "aten", or "_" for all.
// Errors  throws c10::Error: the key has a fallback of another library.
[[nodiscard]] inline torch::Library& hook_operators(const char* operators, c10::DispatchKey key) {
  return *new torch::Library(  // NOLINT: never freed
      torch::Library::IMPL,
      operators,
      key,
      __FILE__,
      __LINE__);
}

// A tensor of like's keys, sizes and strides, and of one key more.
[[nodiscard]] inline at::Tensor make_with_key(const at::Tensor& like,
                                              c10::DispatchKey key,
                                              at::Storage storage,
                                              at::ScalarType dtype,
                                              std::int64_t storage_offset) {
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), like.key_set().add(key), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), storage_offset);
  return tensor;
}

}  // namespace accel::interception
