// WeightFiles: which files of a folder are a model's weights, by their names.
//
// Threads:  pure functions.
#pragma once

#include <string>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::launcher {

// Of the names in a folder without an index: model.safetensors, beside which others are copies of it, or states of optimizers;
// else model-00001-of-0000N.safetensors and so on; else all .safetensors files. Sorted; none: there is no such file.
// Errors  kConfigUnreadable: a numbered file is missing (named).
[[nodiscard]] Result<std::vector<std::string>> safetensors_among(std::vector<std::string> names);

// What to do with weights of a kind that is not read, by their file's name; empty: no weights are known to have such a name.
[[nodiscard]] std::string remedy_for_unread(const std::string& name);

// Of a folder in which nothing is read: names those of its files that are weights. `folder` begins the message.
[[nodiscard]] Error nothing_to_read(const std::string& folder,
                                    const std::vector<std::string>& names);

}  // namespace accel::launcher
