// ModelFiles: which files hold a model's weights, for whoever reads them otherwise than load_checkpoint_in_model() does.
//
// Threads:  functions without state.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace accel::checkpoint {

// Those behind what load_checkpoint_in_model() takes. Errors  as its own.
[[nodiscard]] std::vector<std::filesystem::path> weight_files(const std::filesystem::path& path);

// Of LoadModelOptions::dtype; std::nullopt: the model keeps its own. Errors  throws kInvalidArgument.
[[nodiscard]] std::optional<at::ScalarType> wanted_dtype(std::string name);

// Of a file's tensors one by one. Errors  throws kSafetensorsMismatch: the name is there already, from another file of `path`.
void check_new_name(bool is_new, const std::filesystem::path& path, const std::string& name);

}  // namespace accel::checkpoint
