// PythonPackages: which Python workers would be run with, and what is installed for it.
//
// Versions are read from the files of the packages: nothing is imported, which for torch takes seconds.
//
// Threads:  starts Python, which says its version and folders; no state.
// Cost:     10 to 20 ms.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>

namespace accel::launcher {

struct PythonPackages {
  std::string python;                // its path; empty: none was found
  std::string version;               // "3.11.2"; empty: it did not start
  std::vector<std::string> folders;  // where packages are, in Python's order
};

[[nodiscard]] PythonPackages find_python_packages(const EnvMap& environment);

// From the name of the package's folder of metadata; nullopt: it is not installed.
[[nodiscard]] std::optional<std::string> package_version(const std::vector<std::string>& folders,
                                                         std::string_view package);

struct TorchBuild {
  std::string version;  // "2.11.0+cu130"
  std::string cuda;     // "13.0"; empty: without CUDA
};
[[nodiscard]] std::optional<TorchBuild> torch_build(const std::vector<std::string>& folders);

}  // namespace accel::launcher
