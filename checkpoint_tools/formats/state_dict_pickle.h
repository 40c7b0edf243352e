// StateDictPickle: the pickle by which torch.load() makes a dict of tensors, written without Python.
//
// What torch.save() writes of a state dict: for each name a call of torch._utils._rebuild_tensor_v2(storage, 0, size, stride, ...),
// whose storage is named by a number, the file's data/<number>. Only such calls, which torch.load(weights_only=True) allows.
//
// Threads:  pure functions.
// Source:   torch/_tensor.py (_reduce_ex_internal), torch/serialization.py (persistent_id); tests/peer/merge_weights.py loads it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::launcher {

// A tensor whose elements lie in row-major order, from the first of its storage on.
struct PickledTensor {
  std::string name;
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::size_t storage = 0;  // its number; tied tensors have one
};

// With protocol 2, as PyTorch does.
// Errors  kUnsupported: a dtype that PyTorch has not (named); kInvalidArgument: a size beyond 63 bits.
[[nodiscard]] Result<std::string> state_dict_pickle(std::span<const PickledTensor> tensors);

}  // namespace accel::launcher
