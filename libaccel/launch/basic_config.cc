#include "libaccel/launch/basic_config.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include <nlohmann/json.hpp>

#include <accel/environment.h>
#include <accel/error.h>

#include "runtime/nvidia_gpus.h"
#include "runtime/own_environment.h"
#include "runtime/text/letter_case.h"
#include "runtime/user_folders.h"

namespace accel {
namespace launch {

std::string basic_config_text(const std::string& mixed_precision, int num_gpus) {
  const bool has_gpus = num_gpus > 0;
  const nlohmann::json json = {{"compute_environment", "LOCAL_MACHINE"},
                               {"debug", false},
                               {"distributed_type", num_gpus > 1 ? "MULTI_GPU" : "NO"},
                               {"downcast_bf16", false},
                               {"enable_cpu_affinity", false},
                               {"machine_rank", 0},
                               {"main_training_function", "main"},
                               {"mixed_precision", mixed_precision},
                               {"num_machines", 1},
                               {"num_processes", has_gpus ? num_gpus : 1},
                               {"rdzv_backend", "static"},
                               {"same_network", false},
                               {"tpu_use_cluster", false},
                               {"tpu_use_sudo", false},
                               {"use_cpu", !has_gpus}};
  return json.dump(2) + "\n";
}

namespace {

int num_visible_gpus(const EnvMap& environment) {
  const NvidiaMachine machine = read_nvidia_machine();
  int count = 0;
  while (visible_gpu(machine, environment, count) != nullptr) ++count;
  return count;
}

void write_new_file(const std::filesystem::path& path, const std::string& text) {
  std::error_code failure;
  if (path.has_parent_path()) std::filesystem::create_directories(path.parent_path(), failure);
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  if (!file) {
    const int reason = errno;
    std::filesystem::remove(path, failure);  // what is cut would pass for a configuration
    throw Error(ErrorCode::kFileIo,
                "cannot write the configuration " + path.string() + ": " + errno_text(reason),
                "give a save_location in a folder that can be written");
  }
}

}  // namespace
}  // namespace launch

std::optional<std::string> write_basic_config(const std::string& mixed_precision,
                                              const std::string& save_location) {
  constexpr std::array kPrecisions = {"no", "fp16", "bf16", "fp8"};
  const EnvMap environment = own_environment();
  const std::string path = save_location.empty()
                               ? default_config_path(environment, home_folder(environment))
                               : save_location;
  if (path.empty()) {
    throw Error(ErrorCode::kFileIo,
                "there is no place for the configuration: neither HF_HOME nor HOME is set, and the "
                "user has no home in the password database",
                "give a save_location");
  }
  const std::string precision = lowercase(mixed_precision);
  if (std::find(kPrecisions.begin(), kPrecisions.end(), precision) == kPrecisions.end()) {
    throw Error(
        ErrorCode::kInvalidArgument,
        "`mixed_precision` should be one of 'no', 'fp16', 'bf16', or 'fp8'. Received " + precision,
        "give one of them");
  }
  std::error_code failure;
  if (std::filesystem::exists(path, failure)) {
    std::printf(
        "Configuration already exists at %s, will not override. Run `accel config` manually or "
        "pass "
        "a different `save_location`.\n",
        path.c_str());
    return std::nullopt;
  }
  launch::write_new_file(
      path, launch::basic_config_text(precision, launch::num_visible_gpus(environment)));
  return path;
}

}  // namespace accel
