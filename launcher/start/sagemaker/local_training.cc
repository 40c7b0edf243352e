#include "launcher/start/sagemaker/local_training.h"

#include <string_view>
#include <utility>

namespace accel::launcher {
namespace {

using nlohmann::json;

constexpr std::string_view kLocalCpu = "local";
constexpr std::string_view kLocalGpu = "local_gpu";

// Compose replaces $NAME in its file.
std::string escaped(std::string_view text) {
  std::string all;
  for (const char letter : text) {
    all += letter;
    if (letter == '$') all += '$';
  }
  return all;
}

json mount(const std::string& source, const std::string& target, bool is_read_only = false) {
  return {{"type", "bind"},
          {"source", escaped(source)},
          {"target", target},
          {"read_only", is_read_only}};
}

// The registries of AWS are NUMBER.dkr.ecr.REGION.amazonaws.com.
void find_registry(LocalTraining& training) {
  constexpr std::string_view kMark = ".dkr.ecr.";
  const std::string host = training.image.substr(0, training.image.find('/'));
  const auto mark = host.find(kMark);
  if (mark == std::string::npos) return;
  training.registry = host;
  const std::string rest = host.substr(mark + kMark.size());
  training.registry_region = rest.substr(0, rest.find('.'));
}

// Names alone: Compose takes the values from its own environment.
json environment_of(const TrainingRequest& request, const EnvMap& environment) {
  json words = json::array();
  for (const auto& [name, value] : request.json.at("Environment").items())
    words.push_back(name + "=" + escaped(value.get<std::string>()));
  words.push_back("TRAINING_JOB_NAME=" + request.job_name);
  for (const char* name :
       {"AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"}) {
    if (environment.contains(name)) words.emplace_back(name);
  }
  return words;
}

// The channels' folders on this machine by their names; those in S3 are to be fetched.
Result<std::map<std::string, std::string>> data_folders(const TrainingRequest& request,
                                                        LocalTraining& training) {
  constexpr std::string_view kFile = "file://";
  std::map<std::string, std::string> folders;
  const json channels = request.json.value("InputDataConfig", json::array());
  for (const json& channel : channels) {
    const auto name = channel.at("ChannelName").get<std::string>();
    if (name.find('/') != std::string::npos || name.starts_with('.')) {
      return Error(ErrorCode::kUsage,
                   "the channel '" + name + "' has no name for a folder",
                   "use letters, digits, - and _ in sagemaker_inputs_file");
    }
    const auto location =
        channel.at("DataSource").at("S3DataSource").at("S3Uri").get<std::string>();
    if (location.starts_with("file:///")) {
      folders[name] = location.substr(kFile.size());
    } else if (location.starts_with("s3://")) {
      folders[name] = training.folder + "/data/" + name;
      training.folders.push_back(folders[name]);
      training.fetched.push_back({location, folders[name]});
    } else {
      return Error(ErrorCode::kUsage,
                   "the data of channel '" + name + "' are at '" + location +
                       "', expected s3://BUCKET/... or file:///FOLDER",
                   "mend the line of sagemaker_inputs_file");
    }
  }
  return folders;
}

json channel_configs(const std::map<std::string, std::string>& folders) {
  json channels = json::object();
  for (const auto& [name, folder] : folders) {
    channels[name] = {{"TrainingInputMode", "File"},
                      {"S3DistributionType", "FullyReplicated"},
                      {"RecordWrapperType", "None"}};
  }
  return channels;
}

json volumes_of(const LocalTraining& training,
                const std::map<std::string, std::string>& data,
                const std::string& source_folder,
                const std::string& host) {
  json volumes = {mount(source_folder, "/opt/ml/code"),
                  mount(training.folder + "/" + host + "/config", "/opt/ml/input/config"),
                  mount(training.folder + "/model", "/opt/ml/model"),
                  mount(training.folder + "/output/" + host, "/opt/ml/output")};
  for (const auto& [name, folder] : data)
    volumes.push_back(mount(folder, "/opt/ml/input/data/" + name, /*is_read_only=*/true));
  return volumes;
}

json service_of(const std::string& image, bool has_gpus) {
  json service = {{"image", image},
                  {"command", "train"},
                  {"shm_size", "2gb"},  // loaders share batches in it; Docker's 64 MB are few
                  {"stdin_open", true}};
  if (has_gpus) {
    service["deploy"]["resources"]["reservations"]["devices"] = {
        {{"driver", "nvidia"}, {"count", "all"}, {"capabilities", {"gpu"}}}};
  }
  return service;
}

json hyperparameters_here(const TrainingRequest& request) {
  json parameters = request.json.at("HyperParameters");
  parameters["sagemaker_submit_directory"] = json("/opt/ml/code").dump();
  return parameters;
}

std::vector<std::string> names_of_hosts(int number) {
  std::vector<std::string> hosts;
  for (int i = 1; i <= number; ++i) hosts.push_back("algo-" + std::to_string(i));
  return hosts;
}

}  // namespace

bool is_local(const SageMakerConfig& config) {
  return config.instance_type == kLocalCpu || config.instance_type == kLocalGpu;
}

Result<LocalTraining> make_local_training(const TrainingRequest& request,
                                          const std::string& folder,
                                          const std::string& source_folder,
                                          const EnvMap& environment) {
  const json& resources = request.json.at("ResourceConfig");
  const bool has_gpus = resources.at("InstanceType") == kLocalGpu;
  const auto hosts = names_of_hosts(resources.at("InstanceCount").get<int>());
  if (has_gpus && hosts.size() > 1) {
    return Error(ErrorCode::kUnsupported,
                 "ec2_instance_type is local_gpu on " + std::to_string(hosts.size()) +
                     " machines, expected 1: its containers would share the GPUs",
                 "set num_machines to 1, or ec2_instance_type to local");
  }
  if (request.json.at("HyperParameters").contains("sagemaker_distributed_dataparallel_enabled")) {
    return Error(
        ErrorCode::kUnsupported,
        "distributed_type is DATA_PARALLEL: SageMaker's data parallel library has no local "
        "mode",
        "set distributed_type to NO; accel-launch in the script's container trains on all "
        "hosts");
  }
  LocalTraining training;
  training.folder = folder;
  training.image = request.json.at("AlgorithmSpecification").at("TrainingImage").get<std::string>();
  find_registry(training);
  training.folders = {folder + "/model"};
  auto data = data_folders(request, training);
  if (!data) return std::move(data).error();
  json services = json::object();
  for (const std::string& host : hosts) {
    const std::string config = folder + "/" + host + "/config/";
    training.folders.insert(training.folders.end(), {config, folder + "/output/" + host});
    training.files[config + "hyperparameters.json"] = hyperparameters_here(request).dump(2);
    training.files[config + "inputdataconfig.json"] = channel_configs(*data).dump(2);
    training.files[config + "resourceconfig.json"] =
        json{{"current_host", host}, {"hosts", hosts}, {"network_interface_name", "eth0"}}.dump(2);
    json service = service_of(training.image, has_gpus);
    service["hostname"] = host;
    service["environment"] = environment_of(request, environment);
    service["volumes"] = volumes_of(training, *data, source_folder, host);
    services[host] = std::move(service);
  }
  training.compose_file = folder + "/docker-compose.json";
  training.files[training.compose_file] = json{{"services", std::move(services)}}.dump(2);
  return training;
}

}  // namespace accel::launcher
