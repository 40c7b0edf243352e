// EnvironmentReport: what `accel env` prints, for a bug report.
//
// Threads:  pure functions.
// Source:   `accelerate env` of accelerate 1.15.0; tests/peer/config_command.py compares.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

// Empty: it is not there.
struct EnvironmentFacts {
  std::string accel_version;
  std::string accel_path;
  std::string accelerate_version;
  std::string platform;
  std::string python;
  std::string python_version;
  std::string numpy_version;
  std::string torch_version;
  std::string torch_cuda;  // the CUDA it was built with
  double ram_bytes = 0;
  std::vector<std::string> gpus;  // a name for each
  std::string driver;
  bool is_config_given = false;
  std::optional<ConfigValue::Map> config;  // in normal form
  std::string config_fault;                // why there is none, though there is a file
};

[[nodiscard]] std::string environment_report(const EnvironmentFacts& facts);

// As Python's str() shows it: {'a': True, 'b': [1, None]}.
[[nodiscard]] std::string printed_value(const ConfigValue& value);

}  // namespace accel::launcher
