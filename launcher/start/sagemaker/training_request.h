// TrainingRequest: what SageMaker is asked for, as `aws sagemaker create-training-job` takes it.
//
// Threads:  pure functions.
// Source:   environment and hyperparameters are those of accelerate 1.15.0; how they stand in the
//           request is as the estimators of the SageMaker Python SDK write it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/config/sagemaker_config.h"

namespace accel::launcher {

struct TrainingJob {
  SageMakerConfig config;
  std::string script;                  // its folder is what is sent
  std::vector<std::string> arguments;  // of the script
  EnvMap variables;                    // ACCELERATE_* beside those of SageMaker
  std::string inputs;                  // content of inputs_file; empty without one
  std::string metrics;                 // content of metrics_file
  std::string suffix;                  // makes the job's name unique
};

// What only AWS knows.
struct AwsAccount {
  std::string id = "ACCOUNT";
  std::string role_arn;
};

struct TrainingRequest {
  std::string job_name;
  std::string source_folder;    // to be packed
  std::string source_location;  // s3://BUCKET/JOB/source/sourcedir.tar.gz
  nlohmann::json json;
  std::vector<std::string> notices;
};

// An empty role_arn is made of account and role. Errors  kUsage: a script that is not Python, arguments
// that SageMaker cannot hand on, text that is not UTF-8. kUnsupported: no image is known for versions and region.
// kConfigSyntax: a line of inputs_file or metrics_file without two columns.
[[nodiscard]] Result<TrainingRequest> make_training_request(const TrainingJob& job,
                                                            const AwsAccount& account);

}  // namespace accel::launcher
