// ProgramPath: where a program is, as a shell would find it, and which Python is meant.
//
// Threads:  reads the file system; no state.
#pragma once

#include <string>

#include <accel/env_contract.h>
#include <accel/result.h>

namespace accel {

// The program as a shell would find it. Empty when there is none.
[[nodiscard]] std::string find_on_path(const std::string& program, const EnvMap& environment);

// $PYTHON_EXEC, $VIRTUAL_ENV/bin/python, $CONDA_PREFIX/bin/python, then python3 and python on PATH.
// Errors  kScriptMissing: there is none; kScriptNotExecutable: PYTHON_EXEC cannot be executed.
[[nodiscard]] Result<std::string> find_python(const EnvMap& environment);

}  // namespace accel
