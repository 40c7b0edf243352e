// PickleWriter: the opcodes of a pickle that torch.load(weights_only=True) reads, written without Python.
//
// Each function gives the bytes that push one value; containers are made of the bytes of what they hold.
//
// Threads:  pure functions.
// Source:   Python's Lib/pickletools.py, torch/serialization.py (persistent_id), torch/_tensor.py (_reduce_ex_internal).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <accel/result.h>
#include <accel/safetensors.h>

namespace accel::launcher::pickled {

[[nodiscard]] std::string none();
[[nodiscard]] std::string boolean(bool value);
[[nodiscard]] std::string integer(std::int64_t value);
[[nodiscard]] std::string real(double value);
// UTF-8, of less than 4 GiB.
[[nodiscard]] std::string text(std::string_view value);
// "module name"
[[nodiscard]] std::string global(std::string_view name);
[[nodiscard]] std::string tuple(std::string_view items);
[[nodiscard]] std::string list(std::string_view items);
// Keys and values, in turn.
[[nodiscard]] std::string dict(std::string_view entries);

// A tensor whose elements lie in row-major order, from the first of its storage on.
struct Tensor {
  safetensors::Dtype dtype = safetensors::Dtype::kF32;
  std::vector<std::uint64_t> shape;
  std::size_t storage = 0;  // its number, the entry data/<number>; tied tensors have one
};
// `name` is for messages.
// Errors  kUnsupported: a dtype that PyTorch has not (named); kInvalidArgument: a size beyond 63 bits.
[[nodiscard]] Result<std::string> tensor(std::string_view name, const Tensor& tensor);

// The whole pickle, of protocol 2, as PyTorch writes it.
[[nodiscard]] std::string document(std::string_view value);

}  // namespace accel::launcher::pickled
