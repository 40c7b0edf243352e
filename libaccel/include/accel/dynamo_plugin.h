// TorchDynamoPlugin: how torch.compile compiles a Python program, with the names of HF Accelerate, for workers in Python.
//
//   accel::notebook_launcher(start_python, {.num_processes = 2,
//                                           .env = accel::dynamo_environment({.backend = accel::DynamoBackend::kInductor})});
//
// Accelerate reads the variables if its program passes no plugin. libaccel runs operators one by one: an Accelerator warns once
// that ACCELERATE_DYNAMO_BACKEND has no effect.
//
// Threads:  values; pure functions.
// Source:   tests/peer/parallelism.py reads the variables with Accelerate's class.
#pragma once

#include <map>
#include <optional>
#include <string>

#include <accel/env_contract.h>
#include <accel/export.h>
#include <accel/types.h>

namespace accel {

// A field that is not set comes from its variable, ACCELERATE_DYNAMO_ and the name, else it is the default.
struct TorchDynamoPlugin {
  std::optional<DynamoBackend> backend;  // BACKEND; default no
  std::optional<std::string>
      mode;  // MODE: default, reduce-overhead, max-autotune; "default" if not set
  std::optional<bool> fullgraph;  // USE_FULLGRAPH: the graph may not be broken; default false
  std::optional<bool> dynamic;    // USE_DYNAMIC: shapes differ; not set: torch decides
  std::optional<bool>
      use_regional_compilation;  // USE_REGIONAL_COMPILATION: blocks by themselves; default false
};

// The variables with which a Python worker compiles so. Throws kEnvInvalid, naming a variable that cannot be read.
[[nodiscard]] ACCEL_EXPORT std::map<std::string, std::string> dynamo_environment(
    const TorchDynamoPlugin& plugin, const EnvLookup& env = process_env());

}  // namespace accel
