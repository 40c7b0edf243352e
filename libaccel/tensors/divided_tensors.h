// DividedTensors: which tensors of a checkpoint's objects are spread over the ranks, and what this rank has of them.
//
// A sharded run has no whole optimizer anywhere, and its ranks own parts of the parameters. A part is a range of the
// tensor's elements in row-major order, so it is one range of bytes in a safetensors file: every rank writes and reads
// its own. What is not in here is whole and the same on all ranks.
//
// The key is the identity of a tensor: a parameter of a model, or a placeholder without data that stands for a field of
// an optimizer's state.
//
// Threads:  one at a time.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel::checkpoint {

struct TensorPart {
  std::int64_t begin = 0;  // elements from the start of the whole tensor
  at::Tensor values;       // [n] contiguous, of the dtype that files have
};

class DividedTensors {
 public:
  // On every rank, also on one that has no part of it. dtype: of files, where the tensor has another one.
  void add(const at::Tensor& tensor, std::vector<TensorPart> parts, at::ScalarType dtype) {
    const auto* key = tensor.unsafeGetTensorImpl();
    entries_.insert_or_assign(key, Entry{tensor, std::move(parts), dtype});
  }
  void add(const at::Tensor& tensor, std::vector<TensorPart> parts) {
    add(tensor, std::move(parts), tensor.scalar_type());
  }
  // This rank's parts; nullptr: the tensor is whole.
  [[nodiscard]] const std::vector<TensorPart>* find(const at::Tensor& tensor) const {
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? nullptr : &found->second.parts;
  }
  // Of the tensor in files, whether it is divided or not.
  [[nodiscard]] at::ScalarType dtype_of(const at::Tensor& tensor) const {
    const auto found = entries_.find(tensor.unsafeGetTensorImpl());
    return found == entries_.end() ? tensor.scalar_type() : found->second.dtype;
  }
  // Another rank has the same parts and writes them. This one still reads its own.
  void leave_writing_to_others() noexcept { writes_ = false; }
  [[nodiscard]] bool writes() const noexcept { return writes_; }
  [[nodiscard]] bool empty() const noexcept { return entries_.empty(); }
  void clear() {
    entries_.clear();
    writes_ = true;
  }

 private:
  struct Entry {
    at::Tensor tensor;  // so that no other one gets the address
    std::vector<TensorPart> parts;
    at::ScalarType dtype;
  };
  std::unordered_map<const c10::TensorImpl*, Entry> entries_;
  bool writes_ = true;
};

}  // namespace accel::checkpoint
