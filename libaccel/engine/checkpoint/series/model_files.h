// ModelFiles: the steps of load_checkpoint_in_model(), for a load that leaves some weights on disk.
//
// Threads:  functions without state.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include <ATen/core/Tensor.h>

#include <accel/safetensors_file.h>

namespace torch::nn {
class Module;
}

namespace accel::checkpoint {

// All tensors behind what load_checkpoint_in_model() takes; `read_file` gives those of one of its files. Errors  as its own, and
// those of `read_file`; kSafetensorsMismatch: two files have one name.
[[nodiscard]] safetensors::TensorMap read_weights(
    const std::filesystem::path& path,
    const std::function<safetensors::TensorMap(const std::filesystem::path&)>& read_file);

// Of LoadModelOptions::dtype; std::nullopt: the model keeps its own. Errors  throws kInvalidArgument.
[[nodiscard]] std::optional<at::ScalarType> wanted_dtype(std::string name);

// Gives each floating point tensor of the model the dtype of its name; std::nullopt: it keeps its own.
void convert_weights(
    torch::nn::Module& module,
    const std::function<std::optional<at::ScalarType>(const std::string& name)>& dtype_of);

}  // namespace accel::checkpoint
