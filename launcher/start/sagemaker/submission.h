// Submission: a training job for Amazon SageMaker, from command line and configuration file to `aws`.
//
// All talk with AWS goes through the installed `aws`: its configuration, its proxies, its credentials.
//
//   aws sts get-caller-identity        the account, which names the bucket
//   aws iam get-role                   the role, unless it is an ARN
//   tar, aws s3 cp                     the script's folder
//   aws sagemaker create-training-job, wait, describe-training-job
//
// A job of ec2_instance_type local or local_gpu is not sent: docker compose up runs its containers (local_training.h).
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

// Prints what it does, and returns the exit status: 0 when the job has completed. A local job replaces this process by
// docker compose, whose exit status is that of its first container.
// Errors  kExecFailed: `aws`, `tar` or `docker` cannot be started or say no; kFileIo; those of make_local_training().
[[nodiscard]] Result<int> submit(const Submission& submission);

}  // namespace accel::launcher
