// SubmissionPlan: what is submitted to Amazon SageMaker, from command line and configuration file.
//
// Threads:  reads the files of inputs and metrics; no state.
#pragma once

#include <string>

#include <accel/result.h>

#include "launcher/config/config_file.h"
#include "launcher/flags/flags.h"
#include "launcher/start/sagemaker/submission.h"

namespace accel::launcher {

// Requires a file of SageMaker. `variables`: of workers, of which those of Accelerate are sent.
// Errors  kUsage: flags that cannot hold, no credentials; kConfigUnreadable: a file of inputs or metrics;
//         those of make_training_request().
[[nodiscard]] Result<Submission> plan_submission(const CommandLine& line,
                                                 const ConfigFile& file,
                                                 const EnvMap& variables,
                                                 const EnvMap& environment,
                                                 const std::string& suffix);

}  // namespace accel::launcher
