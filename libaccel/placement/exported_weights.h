// ExportedWeights: the parameters and buffers in a file of torch.export.save(), by name.
//
// Threads:  functions without state.
#pragma once

#include <filesystem>

#include <accel/safetensors_file.h>

namespace accel::placement {

// By its name: "MODEL.pt2".
[[nodiscard]] bool is_exported_file(const std::filesystem::path& file);

// On the mapping of the file, where the values of a tensor lie in row-major order; others in memory. Names of one tensor each have a
// mapping of its own. Errors  as the constructor of ExportedModelImpl; kSafetensorsMismatch: the file was written without values.
[[nodiscard]] safetensors::TensorMap tensors_of_exported(const std::filesystem::path& file);

}  // namespace accel::placement
