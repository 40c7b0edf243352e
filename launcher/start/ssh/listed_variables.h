// ListedVariables: what .deepspeed_env files say that all hosts of a launch get.
//
// Threads:  reads files; no state.
// Source:   DeepSpeed's launcher (deepspeed/launcher/runner.py).
#pragma once

#include <string>
#include <string_view>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel::launcher {

// A file of lines NAME=VALUE. Errors  kConfigSyntax: path and line.
[[nodiscard]] Result<EnvMap> parse_variable_file(std::string_view text, const std::string& path);

// Those of ~/.deepspeed_env and of the one in the working folder, which beats it; $DS_ENV_FILE is another
// name for both. Errors  those of parse_variable_file, kFileIo.
[[nodiscard]] Result<EnvMap> read_listed_variables(const EnvMap& environment);

}  // namespace accel::launcher
