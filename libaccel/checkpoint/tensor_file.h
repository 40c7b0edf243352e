// TensorFile: one safetensors file of a checkpoint, written or read in one pass that also hashes
// it.
#pragma once

#include <filesystem>
#include <functional>

#include <accel/safetensors_file.h>

#include "libaccel/checkpoint/hashed_file.h"

namespace accel::checkpoint {

struct LoadedTensors {
  safetensors::TensorMap tensors;
  safetensors::Metadata metadata;
  FileDigest digest;
};

// Creates `path` and writes it; durable when it returns. Errors as safetensors::save_file.
FileDigest write_tensor_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const safetensors::TensorMap& tensors,
                             const safetensors::Metadata& metadata);

// Errors as safetensors::load_file.
[[nodiscard]] LoadedTensors read_tensor_file(const std::filesystem::path& path);

// Bytes that `tensor` takes in a file. Errors kUnsupported, naming the tensor as `name`.
[[nodiscard]] std::uint64_t stored_bytes(const std::string& name, const at::Tensor& tensor);

// Calls write(temporary path), then gives the file the name `path` and makes that durable. The
// temporary file is removed when something throws.
void replace_file(FileSystem& file_system,
                  const std::filesystem::path& path,
                  const std::function<void(const std::filesystem::path& temporary)>& write);

}  // namespace accel::checkpoint
