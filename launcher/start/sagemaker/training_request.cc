#include "launcher/start/sagemaker/training_request.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <utility>

#include "launcher/documents/config_json.h"
#include "launcher/start/sagemaker/hyperparameters.h"
#include "runtime/printable.h"

namespace accel::launcher {
namespace {

using Json = nlohmann::json;
using Rows = std::vector<std::pair<std::string, std::string>>;

constexpr int kDayOfSeconds = 86'400;
constexpr int kUsualGigabytes = 30;

// Lines of two columns with a tab between them, below a headline.
Result<Rows> read_rows(std::string_view text, const std::string& path) {
  Rows rows;
  for (int number = 1; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 || line.empty()) continue;
    const size_t tab = line.find('\t');
    if (tab == std::string_view::npos) {
      return Error(ErrorCode::kConfigSyntax,
                   path + ":" + std::to_string(number) + ": '" + std::string(line) +
                       "' has one column, expected two with a tab between them",
                   "write each line as NAME, a tab, VALUE, below a headline");
    }
    const std::string_view rest = line.substr(tab + 1);
    rows.emplace_back(line.substr(0, tab), rest.substr(0, std::min(rest.find('\t'), rest.size())));
  }
  return rows;
}

// Of Hugging Face's images for the peer's own versions; other ones have other CUDA and Ubuntu in their names.
Result<std::string> image_of(const SageMakerConfig& config) {
  if (!config.image.empty()) return config.image;
  const SageMakerConfig usual;
  const bool is_usual = config.pytorch_version == usual.pytorch_version &&
                        config.transformers_version == usual.transformers_version &&
                        config.py_version == usual.py_version;
  constexpr std::string_view kRegions[] = {"us-east-1",
                                           "us-east-2",
                                           "us-west-1",
                                           "us-west-2",
                                           "ca-central-1",
                                           "eu-central-1",
                                           "eu-north-1",
                                           "eu-west-1",
                                           "eu-west-2",
                                           "eu-west-3",
                                           "ap-northeast-1",
                                           "ap-northeast-2",
                                           "ap-south-1",
                                           "ap-southeast-1",
                                           "ap-southeast-2",
                                           "sa-east-1"};
  if (is_usual && std::ranges::count(kRegions, config.region) > 0) {
    return "763104351884.dkr.ecr." + config.region +
           ".amazonaws.com/huggingface-pytorch-training:1.10.2-transformers4.17.0-gpu-py38-cu113-"
           "ubuntu20.04";
  }
  return Error(ErrorCode::kUnsupported,
               "the image for PyTorch " + config.pytorch_version + ", Transformers " +
                   config.transformers_version + " and " + config.py_version + " in " +
                   config.region + " is not known",
               "set image_uri in the configuration file, to one of "
               "https://github.com/aws/deep-learning-containers or your own");
}

// [A-Za-z0-9](-*[A-Za-z0-9]){0,62}
std::string job_name(const std::string& base, const std::string& suffix) {
  constexpr size_t kMostLetters = 63;
  std::string name =
      base.substr(0, kMostLetters - std::min(kMostLetters, suffix.size() + 1)) + "-" + suffix;
  std::ranges::replace_if(
      name, [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return name;
}

std::string role_arn(const SageMakerConfig& config, const AwsAccount& account) {
  if (!account.role_arn.empty()) return account.role_arn;
  if (config.role.starts_with("arn:")) return config.role;
  return "arn:aws:iam::" + account.id + ":role/" + config.role;
}

// What the file's additional_args say; each is used at most once.
class Additions {
 public:
  explicit Additions(const ConfigValue::Map& map) {
    for (const ConfigEntry& entry : map) all_[entry.key] = json_of<Json>(entry.value);
  }
  Json take(const char* name, Json otherwise) {
    const auto found = all_.find(name);
    if (found == all_.end()) return otherwise;
    Json value = std::move(found->second);
    all_.erase(found);
    if (value.is_object() && otherwise.is_object()) {
      otherwise.update(value);
      return otherwise;
    }
    return value;
  }
  [[nodiscard]] std::vector<std::string> unused() const {
    std::vector<std::string> notices;
    for (const auto& [name, value] : all_)
      notices.push_back("additional_args has no effect for " + name);
    return notices;
  }

 private:
  std::map<std::string, Json, std::less<>> all_;
};

std::string parameter_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

// The API takes text alone: values are written as JSON, which the containers read.
Json as_texts(const Json& values) {
  Json texts = Json::object();
  for (const auto& [name, value] : values.items()) texts[name] = value.dump();
  return texts;
}

Json environment_json(const TrainingJob& job) {
  Json environment = Json::object();
  for (const auto& [name, value] : job.variables) environment[name] = value;
  environment["ACCELERATE_USE_SAGEMAKER"] = "true";
  environment["ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE"] = job.config.distributed_type;
  return environment;
}

void add_distribution(Json& parameters, const SageMakerConfig& config) {
  if (config.distributed_type != "DATA_PARALLEL") return;
  parameters["sagemaker_distributed_dataparallel_enabled"] = true;
  parameters["sagemaker_distributed_dataparallel_custom_mpi_options"] = "";
  parameters["sagemaker_instance_type"] = config.instance_type;
}

Json channels_of(const Rows& rows) {
  Json channels = Json::array();
  for (const auto& [name, location] : rows) {
    channels.push_back({{"ChannelName", name},
                        {"DataSource",
                         {{"S3DataSource",
                           {{"S3DataType", "S3Prefix"},
                            {"S3Uri", location},
                            {"S3DataDistributionType", "FullyReplicated"}}}}}});
  }
  return channels;
}

Json metrics_of(const Rows& rows) {
  Json metrics = Json::array();
  for (const auto& [name, regex] : rows) metrics.push_back({{"Name", name}, {"Regex", regex}});
  return metrics;
}

Error not_python(const std::string& name) {
  return Error(ErrorCode::kUsage,
               "Your training script should be a python script and not \"" + name + "\"",
               "give a .py file");
}

// JSON holds text alone.
bool is_utf8(const std::string& bytes) {
  try {
    return !Json(bytes).dump().empty();
  } catch (const Json::type_error&) {
    return false;
  }
}

// What stands in the request as the user gave it.
Result<void> check_texts(const TrainingJob& job) {
  std::vector<std::pair<std::string, const std::string*>> given = {
      {"the script's name", &job.script},
      {"inputs_file", &job.inputs},
      {"metrics_file", &job.metrics}};
  for (const std::string& argument : job.arguments) given.emplace_back("an argument", &argument);
  for (const auto& [name, value] : job.variables)
    given.emplace_back("the variable " + name, &value);
  for (const auto& [what, bytes] : given) {
    if (is_utf8(*bytes)) continue;
    return Error(ErrorCode::kUsage,
                 what + " is not UTF-8: " + printable(*bytes),
                 "write it in UTF-8: SageMaker takes text alone");
  }
  return {};
}

}  // namespace

Result<TrainingRequest> make_training_request(const TrainingJob& job, const AwsAccount& account) {
  if (auto checked = check_texts(job); !checked) return std::move(checked).error();
  const SageMakerConfig& config = job.config;
  const std::filesystem::path script = job.script;
  const std::string program = script.filename().string();
  if (!program.ends_with(".py")) return not_python(program);
  auto parameters = hyperparameters_of(job.arguments);
  if (!parameters) return std::move(parameters).error();
  const auto image = image_of(config);
  if (!image) return image.error();
  const auto inputs = read_rows(job.inputs, config.inputs_file);
  if (!inputs) return inputs.error();
  const auto metrics = read_rows(job.metrics, config.metrics_file);
  if (!metrics) return metrics.error();

  Additions additions(config.additional_args);
  TrainingRequest request;
  request.job_name = job_name(config.base_job_name, job.suffix);
  request.source_folder = script.has_parent_path() ? script.parent_path().string() : ".";
  const std::string bucket = "s3://sagemaker-" + config.region + "-" + account.id + "/";
  request.source_location = bucket + request.job_name + "/source/sourcedir.tar.gz";

  Json all = additions.take("hyperparameters", *std::move(parameters));
  add_distribution(all, config);
  all["sagemaker_program"] = program;
  all["sagemaker_submit_directory"] = request.source_location;
  all["sagemaker_region"] = config.region;
  all["sagemaker_job_name"] = request.job_name;
  all["sagemaker_container_log_level"] = 20;

  Json algorithm = {{"TrainingImage", *image}, {"TrainingInputMode", "File"}};
  if (!metrics->empty()) algorithm["MetricDefinitions"] = metrics_of(*metrics);
  request.json = {
      {"TrainingJobName", request.job_name},
      {"AlgorithmSpecification", std::move(algorithm)},
      {"RoleArn", role_arn(config, account)},
      {"HyperParameters", as_texts(all)},
      {"Environment", additions.take("environment", environment_json(job))},
      {"OutputDataConfig",
       {{"S3OutputPath", parameter_text(additions.take("output_path", bucket))}}},
      {"ResourceConfig",
       {{"InstanceType", config.instance_type},
        {"InstanceCount", config.num_machines},
        {"VolumeSizeInGB", additions.take("volume_size", kUsualGigabytes)}}},
      {"StoppingCondition", {{"MaxRuntimeInSeconds", additions.take("max_run", kDayOfSeconds)}}}};
  if (!inputs->empty()) request.json["InputDataConfig"] = channels_of(*inputs);
  request.notices = additions.unused();
  return request;
}

}  // namespace accel::launcher
