// `accel merge-weights`: a checkpoint in parts as one model.safetensors.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include <accel/error.h>

namespace accel::launcher {

// Why the folder may not be removed after a merge to `output`: it is a link, or the result would go with it.
// nullopt: it may.
[[nodiscard]] std::optional<Error> fault_of_removal(const std::filesystem::path& checkpoint,
                                                    const std::filesystem::path& output);

// The exit status. Arguments are what stands after the name of the command.
int merge_weights_command(const std::vector<std::string>& arguments);

}  // namespace accel::launcher
