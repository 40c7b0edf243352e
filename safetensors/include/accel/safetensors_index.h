// Index: the JSON file that maps each tensor of a model to one of several .safetensors files beside it, as on the Hugging Face Hub.
//
//   {"metadata": {"total_size": 96}, "weight_map": {"weight": "model-00001-of-00002.safetensors", ...}}
//   {"weight": "model-00001-of-00002.safetensors", ...}                                                    read as well
//
// Threads:  functions without state.
// Cost:     one JSON file is read or written, and none of the .safetensors files in it.
// Source:   huggingface_hub, serialization; transformers' save_pretrained().
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <accel/export.h>
#include <accel/result.h>

namespace accel::safetensors {

inline constexpr std::string_view kModelIndexName = "model.safetensors.index.json";

using WeightMap =
    std::map<std::string, std::string>;  // the file of each tensor, a name without folders

// Errors  kConfigUnreadable, kConfigSyntax; kConfigInvalidValue: not an index, or a file in it is not beside it. All name `index`.
ACCEL_EXPORT Result<WeightMap> files_by_tensor(const std::filesystem::path& index);

// The names of the files. Errors  as above.
ACCEL_EXPORT Result<std::set<std::string>> files_of_index(const std::filesystem::path& index);

// The text of an index; the same map gives the same text. total_bytes: of all tensors. Errors  kInvalidArgument: a name is not
// UTF-8.
ACCEL_EXPORT Result<std::string> index_text(const WeightMap& files, std::uint64_t total_bytes);

// Writes that text to a hidden file and renames it to `path` in one step, as Writer does. Write the index after the files in it.
// Errors  kInvalidArgument, as above; kDiskFull, kFileIo.
ACCEL_EXPORT Result<void> write_index(const std::filesystem::path& path,
                                      const WeightMap& files,
                                      std::uint64_t total_bytes);

}  // namespace accel::safetensors
