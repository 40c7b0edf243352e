#include "libaccel/tensors/tensor_memory.h"

#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resolve_conj.h>
#include <ATen/ops/resolve_neg.h>

#include <accel/error.h>

namespace accel {

void check_place(const at::Tensor& tensor) {
  if (tensor.device().is_cpu() && tensor.layout() == at::kStrided) return;
  throw Error(ErrorCode::kUnsupported,
              "a collective through shared memory takes dense tensors on the CPU, not " +
                  tensor.toString() + " on " + tensor.device().str(),
              "take the backend gloo or nccl for it");
}

std::byte* bytes_of(const at::Tensor& tensor) {
  return static_cast<std::byte*>(tensor.data_ptr());
}

const char* name_of(const at::Tensor& tensor) {
  return at::toString(tensor.scalar_type());
}

at::Tensor tensor_on(const void* data, std::size_t bytes) {
  static std::byte nothing;
  void* const memory = bytes > 0 ? const_cast<void*>(data) : &nothing;
  return at::from_blob(memory, {static_cast<std::int64_t>(bytes)}, at::kByte);
}

at::Tensor plain_memory_of(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

void copy_back(const at::Tensor& memory, const at::Tensor& tensor) {
  if (memory.data_ptr() == tensor.data_ptr()) return;
  const at::NoGradGuard no_grad;
  tensor.detach().copy_(memory);
}

at::Tensor source_of(const at::Tensor& tensor) {
  check_place(tensor);
  return plain_memory_of(tensor);
}

std::vector<const std::byte*> sources_of(const std::vector<at::Tensor>& tensors) {
  std::vector<const std::byte*> pointers;
  for (const at::Tensor& tensor : tensors) pointers.push_back(bytes_of(tensor));
  return pointers;
}

Target::Target(at::Tensor tensor) : tensor_(std::move(tensor)) {
  check_place(tensor_);
  memory_ = plain_memory_of(tensor_);
}

std::vector<Target> targets_of(const std::vector<at::Tensor>& tensors) {
  std::vector<Target> targets;
  for (const at::Tensor& tensor : tensors) targets.emplace_back(tensor);
  return targets;
}

std::vector<std::byte*> bytes_of(const std::vector<Target>& targets) {
  std::vector<std::byte*> pointers;
  for (const Target& target : targets) pointers.push_back(target.bytes());
  return pointers;
}

}  // namespace accel
