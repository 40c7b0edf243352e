// Safetensors files: named tensors on disk, in the format that Python's safetensors reads and
// writes.
//
// A file is written under a temporary name, synced and renamed, so that a reader sees the old file
// or the new one, never a part. Reading checks the whole header before the first tensor is
// allocated.
//
// Dtypes:   all dtypes of the format that LibTorch has: bool, (u)int8 to 64, float8 (all five), float16,
//           bfloat16, float32, float64, complex64, and float4 packed two to a byte.
// Threads:  functions without state; if two write the same path at once, the file of one of them remains.
// Cost:     one pass over the data. A tensor that is not contiguous or not on the CPU is copied,
//           one at a time.
// Source:   docs/reference/checkpoint_format.md; equality to the bit in tests/peer/safetensors_interop.py.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include <accel/export.h>

namespace accel::safetensors {

using TensorMap = std::map<std::string, at::Tensor>;
using Metadata = std::map<std::string, std::string>;

// Writes `tensors`; the same tensors always give the same bytes.
// Errors  kUnsupported (names a tensor that is sparse, quantized, on the meta device, or of a dtype
//         that the format lacks), kInvalidArgument (a name that is not UTF-8), kDiskFull, kFileIo.
ACCEL_EXPORT void save_file(const TensorMap& tensors,
                            const std::filesystem::path& path,
                            const Metadata& metadata = {});

// Reads all tensors to new memory, on the CPU.
// Errors  kSafetensorsHeader (names the tensor and the fault), kUnsupported (a dtype that LibTorch
//         lacks: F6), kFileIo.
ACCEL_EXPORT TensorMap load_file(const std::filesystem::path& path);

// The string pairs of the header; reads no tensor. Errors as load_file.
ACCEL_EXPORT Metadata load_metadata(const std::filesystem::path& path);

}  // namespace accel::safetensors
