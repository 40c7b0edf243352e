// StoredTensors: a store of the program that keeps what autograd saves, and gives it back in the backward.
//
// Threads:  saved on the thread of the forward, asked for on those of the backward.
// Cost:     as saved_tensors.h, and what the store does.
#pragma once

#include <memory>

#include <ATen/core/Tensor.h>

#include "libaccel/interception/saved_tensors.h"

namespace accel::interception {

// One tensor that is kept. It is destroyed when no node of a graph needs it any more.
class StoredTensor {
 public:
  virtual ~StoredTensor() = default;
  // A tensor without a place in a graph.
  virtual at::Tensor value() = 0;
};

class TensorStore {
 public:
  virtual ~TensorStore() = default;
  virtual std::unique_ptr<StoredTensor> keep(const at::Tensor& tensor) = 0;
};

// For a SavedTensorScope: every tensor goes to the store, which the hooks share.
[[nodiscard]] SavedTensorScope::MakeHooks hooks_of(std::shared_ptr<TensorStore> store);

}  // namespace accel::interception
