// LocalTraining: the local mode of SageMaker, where a job's training containers run on this machine, by `docker compose`.
//
//   FOLDER/docker-compose.json           a service for each host: algo-1, algo-2, ...
//   FOLDER/HOST/config/                  hyperparameters.json, resourceconfig.json, inputdataconfig.json
//   FOLDER/data/CHANNEL/                 what inputs_file names in S3
//   FOLDER/model/  FOLDER/output/HOST/   what the script leaves in SM_MODEL_DIR and SM_OUTPUT_DIR
//
// The script's folder is mounted at /opt/ml/code: what is edited counts at the next launch, and nothing is sent to S3.
//
// Threads:  pure functions.
// Source:   the files that a training container reads:
//           https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-algo-running-container.html
#pragma once

#include <map>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include <accel/result.h>

#include "launcher/start/sagemaker/training_request.h"

namespace accel::launcher {

// ec2_instance_type is `local` or `local_gpu`.
[[nodiscard]] bool is_local(const SageMakerConfig& config);

// Data that is copied out of S3 before the containers start.
struct FetchedChannel {
  std::string location;  // s3://...
  std::string folder;    // absolute
};

struct LocalTraining {
  std::string folder;                        // absolute
  std::vector<std::string> folders;          // to be made, absolute
  std::map<std::string, std::string> files;  // contents by path
  std::vector<FetchedChannel> fetched;
  std::string compose_file;  // one of `files`
  std::string image;
  std::string
      registry;  // of ECR, where `docker` has to log in before it pulls the image; empty: another one
  std::string registry_region;  // whose tokens it takes
  std::string first_host = "algo-1";
};

// `request`: of make_training_request(). `folder` and `source_folder`: absolute. `environment`: the caller's, of which the
// containers get credentials of AWS, by name: values stand in no file.
// Errors  kUnsupported: local_gpu on several machines, SageMaker's data parallel library, which has no local mode; kUsage: an input
// that is neither in S3 nor a file:// of this machine.
[[nodiscard]] Result<LocalTraining> make_local_training(const TrainingRequest& request,
                                                        const std::string& folder,
                                                        const std::string& source_folder,
                                                        const EnvMap& environment);

}  // namespace accel::launcher
