// Script: from what stands after the flags to the command line of a worker.
//
//   x.py, x.pyw, x.pyc, x.pyz, or a
//   folder with __main__.py              $PYTHON -u x.py ...
//   a text that names no other
//   interpreter by #!                    the same; by their names no shell scripts and no files of settings
//   -m package.module                    $PYTHON -u -m package.module ...
//   --run_path x                         $PYTHON -u -c ..., which calls runpy.run_path()
//   --no_python tool                     tool ... (looked up on PATH)
//   an executable file                   itself (a program, or a script with #!)
//
// $PYTHON is $PYTHON_EXEC, $VIRTUAL_ENV/bin/python, $CONDA_PREFIX/bin/python, then python3 and
// python on PATH. Everything that exec would refuse later is found here, with the reason.
//
// Threads:  reads the file system; no state.
#pragma once

#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/text/program.h"
#include "runtime/program_path.h"

namespace accel::launcher {

enum class ScriptKind {
  kFile,     // decided by looking at it
  kModule,   // -m
  kProgram,  // --no_python
  kRunPath,  // --run_path
};

struct WorkerCommand {
  std::vector<std::string> argv;
  bool is_python = false;
  std::string name;  // "train" for path/train.py; names the job
};

// Errors  kScriptMissing (with a similar name in the same folder), kScriptNotExecutable,
// kExecFailed (the
//         interpreter of a script does not exist), kUsage when `script` is empty.
[[nodiscard]] Result<WorkerCommand> resolve_command(const std::string& script,
                                                    const std::vector<std::string>& arguments,
                                                    ScriptKind kind,
                                                    const EnvMap& environment,
                                                    Program program = Program::kLaunch);

}  // namespace accel::launcher
