// `accel export`: a model of Python as a file that libaccel trains without Python (docs/guides/exported-models.md).
//
// The work is done by export_model.py, which is part of this program and runs under the user's Python, once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::launcher {

// The exit status. Arguments are what stands after the name of the command.
int export_command(const std::vector<std::string>& arguments);

// What `accel export` says of a file that is written; the error that the script answered with; or one that says that it did
// not come to an answer. `output` is the stdout of the script.
[[nodiscard]] Result<std::string> export_report(std::string_view output, int exit_code);

}  // namespace accel::launcher
