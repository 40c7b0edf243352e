// TrainingContainer: where in a training job of SageMaker this container is, by what its toolkit says.
//
//   SM_HOSTS            ["algo-1", "algo-2"]
//   SM_CURRENT_HOST     algo-2
//   SM_NUM_GPUS         8
//
// Without the toolkit's variables /opt/ml/input/config/resourceconfig.json says the hosts.
//
// Threads:  pure functions.
// Source:   https://github.com/aws/sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"

namespace accel::launcher {

inline constexpr const char* kResourceConfigPath = "/opt/ml/input/config/resourceconfig.json";

struct TrainingContainer {
  std::vector<std::string> hosts;
  int index = 0;     // of this one
  int num_gpus = 0;  // of this one
};

// `resource_config` is asked for the file's content, empty where there is none. std::nullopt: no container
// of SageMaker. Errors  kEnvInvalid: names the variable or file, and what was expected.
[[nodiscard]] Result<std::optional<TrainingContainer>> read_training_container(
    const EnvMap& environment, const std::function<std::string()>& resource_config);

// Adds to `line` what neither it, the file nor the PET_* variables in `environment` say: machines, rank, address and number
// of processes. Requires: translate_torchrun() comes after it.
void join_training_job(CommandLine& line,
                       const ConfigFile* file,
                       const TrainingContainer& here,
                       const EnvMap& environment);

}  // namespace accel::launcher
