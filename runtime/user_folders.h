// UserFolders: where a user's own files and temporary ones go when nothing else is said.
//
// Threads:  free of state.
#pragma once

#include <string>

#include <accel/env_contract.h>

namespace accel {

// HOME; without it, or when it is empty, the home of the effective user in the password database, as "~" is read by
// Python. Empty: the user has no entry there. Cost: with HOME a look into the map.
[[nodiscard]] std::string home_folder(const EnvMap& environment);

// TMPDIR, absolute, when it is a folder that this process may write, else "/tmp".
[[nodiscard]] std::string temporary_folder(const EnvMap& environment);

// $HF_HOME/accelerate/default_config.yaml; without HF_HOME the same below $XDG_CACHE_HOME/huggingface, and without that
// below ~/.cache/huggingface. `home` is what "~" stands for, as of home_folder(). Empty: there is none, and it takes one.
// A pure function. Source: accelerate 1.15.0, commands/config/config_args.py.
[[nodiscard]] std::string default_config_path(const EnvMap& environment, const std::string& home);

}  // namespace accel
