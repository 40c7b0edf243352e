#include "launcher/config/sagemaker_config.h"

namespace accel::launcher {

std::span<const std::string_view> sagemaker_keys() {
  static constexpr std::string_view kKeys[] = {"additional_args",
                                               "base_job_name",
                                               "compute_environment",
                                               "debug",
                                               "distributed_type",
                                               "dynamo_backend",
                                               "dynamo_config",
                                               "ec2_instance_type",
                                               "enable_cpu_affinity",
                                               "fp16",
                                               "gpu_ids",
                                               "iam_role_name",
                                               "image_uri",
                                               "mixed_precision",
                                               "num_machines",
                                               "profile",
                                               "py_version",
                                               "pytorch_version",
                                               "region",
                                               "sagemaker_inputs_file",
                                               "sagemaker_metrics_file",
                                               "transformers_version",
                                               "use_cpu"};
  return kKeys;
}

}  // namespace accel::launcher
