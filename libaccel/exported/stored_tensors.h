// StoredTensors: the tensors of an archive, or of a safetensors file in its place.
//
// Two names of one storage and one shape are one tensor: tied weights. Two that differ in shape share the storage.
//
// Threads:  one at a time.
// Cost:     each storage is read once, straight into its memory. Within empty weights (accel/big_model.h) no parameters are read.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "libaccel/exported/archive.h"

namespace accel::exported {

using TensorsByName = std::map<std::string, at::Tensor>;

// Throws kCheckpointIncomplete, kFileIo; kSafetensorsMismatch naming tensors that were written without values.
[[nodiscard]] TensorsByName read_tensors(const std::vector<Payload>& payloads);

// Takes the values of `payloads` from a safetensors file. One that is not there keeps the archive's when it is no parameter;
// a tied one takes what its other name has.
// Throws kSafetensorsMismatch naming all that are missing and all that have other shapes; what safetensors::load_file() throws.
[[nodiscard]] TensorsByName read_tensors(const std::vector<Payload>& payloads,
                                         const std::filesystem::path& weights);

}  // namespace accel::exported
