// OffloadFolder: single weights on disk, for dispatching and for OffloadedWeightsLoader.
//
// Threads:  functions without state.
#pragma once

#include <filesystem>
#include <string>

#include <ATen/core/Tensor.h>

#include <accel/offload.h>
#include <accel/safetensors.h>

namespace accel::placement {

// On the mapping of the file. `name` is for messages. Errors  as pager::tensor_in_file(); kUnsupported: a dtype that LibTorch lacks.
[[nodiscard]] at::Tensor tensor_in_safetensors(const std::filesystem::path& file,
                                               const safetensors::Header& header,
                                               const safetensors::TensorInfo& info,
                                               const std::string& name);

// NAME.dat, on its mapping. Errors  as OffloadedWeightsLoader::at().
[[nodiscard]] at::Tensor weight_in_folder(const std::filesystem::path& folder,
                                          const std::string& name,
                                          const OffloadedWeight& weight);

}  // namespace accel::placement
