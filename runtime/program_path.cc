#include "runtime/program_path.h"

#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include <unistd.h>

#include "runtime/environment_value.h"

namespace accel {
namespace {

namespace fs = std::filesystem;

bool is_executable_path(const fs::path& path) {
  return ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_on_path(const std::string& program, const EnvMap& environment) {
  std::string_view folders = environment.count("PATH") != 0
                                 ? std::string_view(environment.at("PATH"))
                                 : "/usr/local/bin:/usr/bin:/bin";
  std::error_code ignored;
  while (true) {
    const size_t colon = std::min(folders.find(':'), folders.size());
    const fs::path folder = colon == 0 ? "." : fs::path(folders.substr(0, colon));
    if (fs::is_regular_file(folder / program, ignored) && is_executable_path(folder / program)) {
      return (folder / program).string();
    }
    if (colon == folders.size()) return "";
    folders.remove_prefix(colon + 1);
  }
}

Result<std::string> find_python(const EnvMap& environment) {
  if (const std::string named = value_in(environment, "PYTHON_EXEC"); !named.empty()) {
    const std::string path =
        named.find('/') == std::string::npos ? find_on_path(named, environment) : named;
    if (!path.empty() && is_executable_path(path)) return path;
    return Error(ErrorCode::kScriptNotExecutable,
                 "PYTHON_EXEC is " + named + ", which cannot be executed",
                 "unset PYTHON_EXEC, or set it to a Python program");
  }
  for (const char* root : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string folder = value_in(environment, root);
    if (folder.empty()) continue;
    const std::string path = folder + "/bin/python";
    if (is_executable_path(path)) return path;
  }
  for (const char* name : {"python3", "python"}) {
    if (std::string path = find_on_path(name, environment); !path.empty()) return path;
  }
  return Error(ErrorCode::kScriptMissing,
               "no Python was found on PATH to run the script with",
               "activate an environment, or set PYTHON_EXEC to a Python program");
}

}  // namespace accel
