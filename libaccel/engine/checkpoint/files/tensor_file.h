// TensorFile: one safetensors file of a checkpoint, written or read in one pass that also hashes
// it.
#pragma once

#include <filesystem>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/safetensors.h>
#include <accel/safetensors_file.h>

#include "runtime/checkpoint/hashed_file.h"

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
// The same, but leaves the sync to `unsynced`.
FileDigest write_tensor_file(FileSystem& file_system,
                             const std::filesystem::path& path,
                             const safetensors::TensorMap& tensors,
                             const safetensors::Metadata& metadata,
                             UnsyncedFiles& unsynced);

// Errors as safetensors::load_file.
[[nodiscard]] LoadedTensors read_tensor_file(const std::filesystem::path& path);

// The tensors of a file without their values, on the meta device. Errors as safetensors::load_file.
[[nodiscard]] safetensors::TensorMap read_shapes(const std::filesystem::path& path);

// Bytes that `tensor` takes in a file. Errors kUnsupported, naming the tensor as `name`.
[[nodiscard]] std::uint64_t stored_bytes(const std::string& name, const at::Tensor& tensor);

// How a file describes `tensor`. Errors  kUnsupported, naming it as `name`: a dtype that the format lacks; no data.
[[nodiscard]] safetensors::TensorSpec spec_of(const std::string& name, const at::Tensor& tensor);
[[nodiscard]] std::vector<safetensors::TensorSpec> specs_of(const safetensors::TensorMap& tensors);
// The same of a tensor that need not have data.
[[nodiscard]] safetensors::TensorSpec spec_of_shape(const std::string& name,
                                                    at::ScalarType dtype,
                                                    at::IntArrayRef shape);
// The dtype of a file's tensors in LibTorch. Errors  kUnsupported, naming the tensor as `name`.
[[nodiscard]] at::ScalarType scalar_type_of(const std::string& name, safetensors::Dtype dtype);
// Memory for a tensor of a file, or, on the meta device, its shape alone. Errors  kUnsupported.
[[nodiscard]] at::Tensor allocate(const safetensors::TensorInfo& info,
                                  at::DeviceType device = at::kCPU);
// On the CPU, contiguous, no pending conjugation: its memory is what a file holds.
[[nodiscard]] at::Tensor plain(const at::Tensor& tensor);

}  // namespace accel::checkpoint
