// TensorMemory: the bytes of tensors, as collectives read and write them.
//
//   contiguous tensor      its memory is read and written in place
//   any other              a contiguous copy, copied back where the collective writes
//   conjugated, negated    a copy that is not, copied back so
//
// Threads:  one thread at a time.
// Errors    throws kUnsupported: a tensor that is not dense, or not on the CPU.
#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel {

void check_place(const at::Tensor& tensor);

[[nodiscard]] std::byte* bytes_of(const at::Tensor& tensor);
[[nodiscard]] const char* name_of(const at::Tensor& tensor);  // of its type

// A tensor of bytes in memory that somebody else holds, valid as long as that. Who passes const memory must not write to it.
[[nodiscard]] at::Tensor tensor_on(const void* data, std::size_t bytes);

// A tensor's own memory where that holds its values in order, else a copy. Nothing of it is part of the graph.
[[nodiscard]] at::Tensor plain_memory_of(const at::Tensor& tensor);
void copy_back(const at::Tensor& memory, const at::Tensor& tensor);

// Of a tensor that a collective reads.
[[nodiscard]] at::Tensor source_of(const at::Tensor& tensor);
[[nodiscard]] std::vector<const std::byte*> sources_of(const std::vector<at::Tensor>& tensors);

// The memory of a tensor that a collective writes; what was copied is copied back at the end.
class Target {
 public:
  explicit Target(at::Tensor tensor);
  // After the collective, when it has not thrown.
  void settle() { copy_back(memory_, tensor_); }
  [[nodiscard]] std::byte* bytes() const { return bytes_of(memory_); }
  [[nodiscard]] std::size_t num_bytes() const { return memory_.nbytes(); }
  [[nodiscard]] const at::Tensor& memory() const { return memory_; }

 private:
  at::Tensor tensor_;
  at::Tensor memory_;
};

[[nodiscard]] std::vector<Target> targets_of(const std::vector<at::Tensor>& tensors);
[[nodiscard]] std::vector<std::byte*> bytes_of(const std::vector<Target>& targets);

}  // namespace accel
