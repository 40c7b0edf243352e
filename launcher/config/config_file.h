// ConfigFile: a configuration file of HF Accelerate, read, checked against the schema and typed.
//
// Threads:  pure functions but for load_config_file(), which reads the file.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "launcher/config/sagemaker_config.h"
#include "launcher/config/section_reader.h"
#include "launcher/documents/config_document.h"
#include "launcher/documents/file_notice.h"

namespace accel::launcher {

// What the file says of torch.compile. std::nullopt: nothing.
struct DynamoSettings {
  std::optional<std::string> backend;
  std::optional<std::string> mode;
  std::optional<bool> use_fullgraph;
  std::optional<bool> use_dynamic;
  std::optional<bool> use_regional_compilation;
};

// std::nullopt: the file does not say (or says null).
struct ConfigFile {
  std::string path;
  std::string compute_environment = "LOCAL_MACHINE";
  std::string distributed_type;      // never empty
  std::optional<int> num_processes;  // -1 in the file counts as not said; absent with NO is 1
  std::optional<int> num_machines;
  std::optional<int> machine_rank;
  std::optional<int> main_process_port;
  std::optional<std::string> main_process_ip;
  std::optional<std::string> rdzv_backend;
  std::optional<std::string> gpu_ids;
  std::optional<std::string> mpirun_hostfile;  // of mpirun_config
  // AMAZON_SAGEMAKER: the job is submitted; what is not in it counts for one process on one machine.
  std::optional<SageMakerConfig> sagemaker;
  std::optional<std::string> mixed_precision;
  std::optional<bool> use_cpu;
  std::optional<bool> tpu_use_cluster;
  std::optional<std::string> tpu_name;
  std::vector<std::string> tpu_vm;   // without empty ones, as the peer writes them
  std::vector<std::string> tpu_env;  // as above
  std::optional<bool> tpu_use_sudo;
  std::optional<bool> downcast_bf16;                  // with XLA
  std::optional<std::string> main_training_function;  // with XLA
  std::optional<bool> debug;
  std::optional<bool> enable_cpu_affinity;
  DynamoSettings dynamo;
  OptionValues options;                     // what fsdp_config and its like say
  std::vector<std::string> deepspeed_keys;  // of deepspeed_config, in the order of the file
  bool has_parallelism = false;             // parallelism_config says something
  std::vector<FileNotice> notices;          // repeated and retired keys
};

// Errors  kConfigSyntax, kConfigUnknownKey (the peer's text), kConfigInvalidValue (path, line, key
// and
//         what was expected; several faults are collected).
[[nodiscard]] Result<ConfigFile> parse_config_file(std::string_view text,
                                                   ConfigFormat format,
                                                   const std::string& path);

// The format follows the name: JSON when it ends in .json. Errors  also kConfigUnreadable.
[[nodiscard]] Result<ConfigFile> load_config_file(const std::string& path);

}  // namespace accel::launcher
