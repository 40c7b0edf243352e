// Environment: variables for the length of a block, a first configuration, and the cores of a process.
//
// The helpers that HF Accelerate has in accelerate.utils, under the same names.
//
// Threads:  the guards change the environment of the whole process; getenv() and setenv() on other threads meanwhile are
//           a data race. Guards end in the reverse order of their beginning.
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
  // `before`: values to put back; empty values of it: variables to remove. `prefix`: other variables that begin with it
  // go, all of them when it is empty.
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

// Sets the variables, their names in upper case, until the guard goes; then they are as before.
//   { auto patched = accel::patch_environment({{"omp_num_threads", "4"}}); run(); }
// Errors  kInvalidArgument: a name that is empty or has a '='; nothing was set then.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard
patch_environment(const std::map<std::string, std::string>& variables);

// Removes all variables until the guard is destroyed. Then all are as before, and added ones are removed.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard clear_environment();

// Changes nothing now: when the guard goes, the variables that begin with ACCELERATE_ are as they are now, so that what one
// run or one test has set does not decide the next. The decorator of this name in Accelerate is such a guard around a function.
[[nodiscard]] ACCEL_EXPORT EnvironmentGuard purge_accelerate_environment();

// Writes a configuration for this machine that accel-launch and `accelerate launch` read: all of its GPUs, or one
// process on the CPU. It writes JSON under any name of the file, as Accelerate does: JSON is valid YAML.
//
// mixed_precision  "no", "fp16", "bf16" or "fp8", in any case
// save_location    empty: default_config.yaml in $HF_HOME/accelerate, $XDG_CACHE_HOME/huggingface/accelerate or
//                  ~/.cache/huggingface/accelerate
// Returns the path; std::nullopt, with a line on stdout, when the file is there already: it stays as it is.
// Errors  kInvalidArgument: another precision; kFileIo.
ACCEL_EXPORT std::optional<std::string> write_basic_config(
    const std::string& mixed_precision = "no", const std::string& save_location = "");

// Binds this process, all its threads, to the cores of the memory node that its GPU hangs on; without GPUs to its share
// of the machine's memory nodes among LOCAL_WORLD_SIZE processes. Only cores that are granted to the process count. Does
// nothing when it was called for this local_rank before, and where the machine does not say where a GPU hangs.
//
// local_rank  of this process on this machine
// verbose     a line on stdout with the cores; by default when ACCELERATE_DEBUG_MODE is on
// Errors  kInvalidArgument: local_rank is below 0; kTopology; kEnvInvalid: LOCAL_WORLD_SIZE.
// Cost:   some milliseconds for the first call.
ACCEL_EXPORT void set_numa_affinity(int local_rank, std::optional<bool> verbose = std::nullopt);

}  // namespace accel
