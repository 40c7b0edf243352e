#include "launcher/start/sagemaker/submission_plan.h"

#include <utility>

#include "launcher/flags/exclusive_flags.h"
#include "launcher/start/sagemaker/local_training.h"
#include "launcher/text/faults.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

// As the peer: a profile of the file, else keys of the command line. What `aws` finds by itself is good too.
Result<void> add_credentials(EnvMap& environment,
                             const CommandLine& line,
                             const SageMakerConfig& config) {
  environment["AWS_DEFAULT_REGION"] = config.region;
  if (!config.profile.empty()) {
    environment["AWS_PROFILE"] = config.profile;
    return {};
  }
  const auto id = line.text("aws_access_key_id");
  const auto secret = line.text("aws_secret_access_key");
  if (id && secret) {
    environment["AWS_ACCESS_KEY_ID"] = *id;
    environment["AWS_SECRET_ACCESS_KEY"] = *secret;
    return {};
  }
  for (const char* name : {"AWS_PROFILE",
                           "AWS_ACCESS_KEY_ID",
                           "AWS_WEB_IDENTITY_TOKEN_FILE",
                           "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
                           "AWS_CONTAINER_CREDENTIALS_FULL_URI"}) {
    if (environment.contains(name)) return {};
  }
  if (is_local(config)) return {};  // an image and data that are here need none
  return usage_error(
      "You need to provide an aws_access_key_id and aws_secret_access_key when not using "
      "aws_profile",
      "set profile in the configuration file, export AWS_PROFILE, or give "
      "--aws_access_key_id and --aws_secret_access_key");
}

}  // namespace

Result<Submission> plan_submission(const CommandLine& line,
                                   const ConfigFile& file,
                                   const EnvMap& variables,
                                   const EnvMap& environment,
                                   const std::string& suffix) {
  if (const std::string flag = first_exclusive_flag(line); !flag.empty()) {
    return usage_error(
        flag + " cannot be used with " + file.path + ", which is for Amazon SageMaker",
        "leave the flag out, or give another --config_file");
  }
  if (line.is_on("module") || line.is_on("no_python")) {
    return usage_error(
        "SageMaker requires a python training script file and cannot be used with --module "
        "or --no_python",
        "give a .py file");
  }
  Submission submission;
  submission.is_printed_only = line.is_on("debug") || line.is_on("dry_run");
  submission.environment = environment;
  TrainingJob& job = submission.job;
  job.config = *file.sagemaker;
  job.script = line.script;
  job.arguments = line.script_arguments;
  job.suffix = suffix;
  for (const auto& [name, value] : variables) {
    for (const char* prefix :
         {"ACCELERATE_MIXED_PRECISION", "ACCELERATE_DYNAMO_", "ACCELERATE_FP8_"}) {
      if (name.starts_with(prefix)) job.variables[name] = value;
    }
  }
  if (auto added = add_credentials(submission.environment, line, job.config); !added)
    return std::move(added).error();
  const std::pair<const std::string&, std::string&> files[] = {
      {job.config.inputs_file, job.inputs}, {job.config.metrics_file, job.metrics}};
  for (const auto& [path, content] : files) {
    if (path.empty()) continue;
    auto text = read_text_file(path, kMostConfigBytes, "the file for SageMaker");
    if (!text) return std::move(text).error();
    content = *std::move(text);
  }
  auto request = make_training_request(job, {});
  if (!request) return std::move(request).error();
  submission.notices = std::move(request->notices);
  return submission;
}

}  // namespace accel::launcher
