// SageMakerConfig: what a configuration file of Amazon SageMaker says beside what all files say.
//
// Threads:  plain values.
// Source:   keys and defaults are those of accelerate 1.15.0 (SageMakerConfig of its config_args.py).
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "launcher/documents/config_document.h"

namespace accel::launcher {

struct SageMakerConfig {
  std::string distributed_type = "NO";  // or DATA_PARALLEL, MODEL_PARALLEL
  std::string instance_type;
  std::string role;     // a name or an ARN
  std::string image;    // empty: by the versions
  std::string profile;  // of AWS; empty: keys
  std::string region = "us-east-1";
  int num_machines = 1;
  std::string base_job_name = "accelerate-sagemaker-1";
  std::string pytorch_version = "1.10.2";
  std::string transformers_version = "4.17.0";
  std::string py_version = "py38";
  std::string inputs_file;   // may be empty
  std::string metrics_file;  // may be empty
  ConfigValue::Map additional_args;
};

// All keys that such a file may have.
[[nodiscard]] std::span<const std::string_view> sagemaker_keys();

}  // namespace accel::launcher
