// Submission: a training job for Amazon SageMaker, from command line and configuration file to `aws`.
//
// All talk with AWS goes through the installed `aws`: its configuration, its proxies, its credentials.
//
//   aws sts get-caller-identity        the account, which names the bucket
//   aws iam get-role                   the role, unless it is an ARN
//   tar, aws s3 cp                     the script's folder
//   aws sagemaker create-training-job, wait, describe-training-job
//
// Threads:  the calling one; submit() waits until the job has ended.
#pragma once

#include <string>
#include <vector>

#include <accel/result.h>

#include "launcher/start/sagemaker/training_request.h"

namespace accel::launcher {

struct Submission {
  TrainingJob job;
  EnvMap environment;            // of `aws`
  bool is_printed_only = false;  // --debug, --dry_run
  std::vector<std::string> notices;
};

// Prints what it does, and returns the exit status: 0 when the job has completed.
// Errors  kExecFailed: `aws` or `tar` cannot be started or say no; kFileIo.
[[nodiscard]] Result<int> submit(const Submission& submission);

}  // namespace accel::launcher
