// ModelJson: the JSON beside a model's weights, its index and its configuration, and how what is wrong with them is said.
//
// Threads:  reads a file.
#pragma once

#include <filesystem>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::safetensors {

// "PATH: <what>", with the code's own remedy when none is given.
[[nodiscard]] Error model_file_error(ErrorCode code,
                                     const std::filesystem::path& path,
                                     const std::string& what,
                                     std::string remedy = "");

// Errors  kConfigUnreadable, kConfigSyntax; both name the file.
[[nodiscard]] Result<nlohmann::json> read_model_json(const std::filesystem::path& path);

}  // namespace accel::safetensors
