// ModelIndex: model.safetensors.index.json, which says in which files beside it a model's tensors are.
//
// Threads:  reads a file.
#pragma once

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::launcher {

inline constexpr std::string_view kModelIndexName = "model.safetensors.index.json";

// "PATH: <what>", with the code's own remedy when none is given.
[[nodiscard]] Error model_file_error(ErrorCode code,
                                     const std::filesystem::path& path,
                                     const std::string& what,
                                     std::string remedy = "");

// Errors  kConfigUnreadable, kConfigSyntax; both name the file.
[[nodiscard]] Result<nlohmann::json> read_model_json(const std::filesystem::path& path);

// The file of each tensor. Errors  as above; kConfigInvalidValue: it is no index, or names a file that is not beside it.
[[nodiscard]] Result<std::map<std::string, std::string>> files_by_tensor(
    const std::filesystem::path& index);

// The names of the files. Errors  as above.
[[nodiscard]] Result<std::set<std::string>> files_of_index(const std::filesystem::path& index);

}  // namespace accel::launcher
