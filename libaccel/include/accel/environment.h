// Environment: sets variables for a block, writes a first configuration, binds a process to cores.
//
// These are helpers of accelerate.utils, under the same names.
//
// Threads:  the guards change the environment of the whole process, so getenv() and setenv() on other threads are a data race.
//           Guards must end in the reverse order of their construction.
// Source:   tests/unit/launch/environment_test.cc.
#pragma once

#include <map>
#include <optional>
#include <string>

#include <accel/export.h>

namespace accel {

// Restores variables when it is destroyed.
class ACCEL_EXPORT EnvironmentGuard {
 public:
  // before: values to restore; std::nullopt removes the variable. prefix: removes all other variables that begin with it, or all
  // other variables if it is empty.
  EnvironmentGuard(std::map<std::string, std::optional<std::string>> before,
                   std::optional<std::string> prefix);
  ~EnvironmentGuard();
  EnvironmentGuard(EnvironmentGuard&& other) noexcept;
  EnvironmentGuard& operator=(EnvironmentGuard&&) = delete;

 private:
  std::map<std::string, std::optional<std::string>> before_;
  std::optional<std::string> prefix_;
  bool is_active_ = true;
};

// Sets the variables, with their names in upper case. The guard restores the old values.
//   { auto patched = accel::patch_environment({{"omp_num_threads", "4"}}); run(); }
// Errors  kInvalidArgument: a name that is empty or contains '='; nothing is set then.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard
patch_environment(const std::map<std::string, std::string>& variables);

// Removes all variables. The guard restores them and removes added ones.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard clear_environment();

// Changes nothing at first. The guard restores the current values of all variables that begin with ACCELERATE_. So variables of one run
// or one test do not affect the next. In Accelerate it is a decorator of a function.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard purge_accelerate_environment();

// Writes a configuration for this machine, for accel-launch and `accelerate launch`: all GPUs, or one process on the CPU. It writes
// JSON under any file name, as Accelerate does, because JSON is valid YAML.
//
// mixed_precision  "no", "fp16", "bf16" or "fp8", in any case
// save_location    empty: default_config.yaml in $HF_HOME/accelerate, $XDG_CACHE_HOME/huggingface/accelerate or
//                  ~/.cache/huggingface/accelerate
// Returns the path. If the file exists, it stays unchanged: std::nullopt, with a line on stdout.
// Errors  kInvalidArgument: another precision; kFileIo.
ACCEL_EXPORT std::optional<std::string> write_basic_config(
    const std::string& mixed_precision = "no", const std::string& save_location = "");

// Binds all threads of this process to the cores of its GPU's memory node. Without GPUs it divides the memory nodes among
// LOCAL_WORLD_SIZE processes. It uses only cores that the process may use. A second call for the same local_rank does nothing, and so
// does a call on a machine that does not report the memory node of the GPU.
//
// local_rank  of this process on this machine
// verbose     a line on stdout with the cores; by default when ACCELERATE_DEBUG_MODE is on
// Errors  kInvalidArgument: local_rank is below 0; kTopology; kEnvInvalid: LOCAL_WORLD_SIZE.
// Cost:   some milliseconds for the first call.
ACCEL_EXPORT void set_numa_affinity(int local_rank, std::optional<bool> verbose = std::nullopt);

}  // namespace accel
