#include "launcher/config/config_schema.h"

#include <algorithm>

namespace accel::launcher {
namespace {

using enum ConfigType;
using enum ConfigEffect;

constexpr std::string_view kDistributedTypes =
    "NO,MULTI_CPU,MULTI_GPU,MULTI_NPU,MULTI_MLU,MULTI_SDAA,MULTI_MUSA,MULTI_XPU,DEEPSPEED,FSDP,XLA,"
    "MEGATRON_LM,MULTI_HPU,MULTI_NEURON";

constexpr ConfigKey kKeys[] = {
    {"amax_compute_algorithm", kText, "", "", kRetired, "the key is fp8_config.amax_compute_algo"},
    {"amax_history_length", kInteger, "", "", kRetired, "the key is fp8_config.amax_history_len"},
    {"command_file", kText, "", "none", kElsewhere, "TPU pods: file of commands."},
    {"commands", kList, "", "none", kElsewhere, "TPU pods: commands."},
    {"compute_environment",
     kChoice,
     "LOCAL_MACHINE,AMAZON_SAGEMAKER",
     "LOCAL_MACHINE",
     kUsed,
     "Where the job runs; a file for AMAZON_SAGEMAKER has keys of its own "
     "(docs/guides/clusters.md)."},
    {"debug", kBool, "", "false", kUsed, "As --debug."},
    {"deepspeed_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of DeepSpeed, for distributed_type DEEPSPEED; see below."},
    {"distributed_type",
     kChoice,
     kDistributedTypes,
     "must be given",
     kUsed,
     "How the processes work together, and on which devices."},
    {"downcast_bf16", kText, "", "no", kUsed, "As --downcast_bf16."},
    {"dynamo_backend", kText, "", "none", kUsed, "Older form of dynamo_config.dynamo_backend."},
    {"dynamo_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of torch.compile for Python scripts, see below."},
    {"enable_cpu_affinity", kBool, "", "false", kUsed, "As --enable_cpu_affinity."},
    {"fp16", kBool, "", "false", kUsed, "Older form of mixed_precision: fp16."},
    {"fp8_config", kMap, "", "none", kUsed, "Options of fp8, for mixed_precision fp8; see below."},
    {"fsdp_backward_prefetch_policy",
     kText,
     "",
     "",
     kRetired,
     "the key is fsdp_config.fsdp_backward_prefetch"},
    {"fsdp_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of FSDP, for distributed_type FSDP; see below."},
    {"gpu_ids", kText, "", "all", kUsed, "As --gpu_ids."},
    {"ipex_config", kMap, "", "", kRetired, "IPEX is part of PyTorch now"},
    {"machine_rank", kInteger, "", "0", kUsed, "As --machine_rank."},
    {"main_process_ip", kText, "", "none", kUsed, "As --main_process_ip."},
    {"main_process_port", kInteger, "", "none", kUsed, "As --main_process_port."},
    {"main_training_function", kText, "", "main", kUsed, "As --main_training_function."},
    {"megatron_lm_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of Megatron-LM, for distributed_type MEGATRON_LM; see below."},
    {"mixed_precision", kChoice, "no,fp16,bf16,fp8", "no", kUsed, "As --mixed_precision."},
    {"mpirun_ccl",
     kText,
     "",
     "",
     kRetired,
     "mpirun is configured by mpirun_config.mpirun_hostfile"},
    {"mpirun_config",
     kMap,
     "",
     "none",
     kUsed,
     "For workers that mpirun starts: its key mpirun_hostfile is as --mpirun_hostfile."},
    {"num_machines", kInteger, "", "1", kUsed, "As --num_machines."},
    {"num_processes",
     kInteger,
     "",
     "1 for NO, else to be given with --num_processes",
     kUsed,
     "As --num_processes: the number of all processes."},
    {"optimization_level", kText, "", "", kRetired, "the key is fp8_config.opt_level"},
    {"parallelism_config",
     kMap,
     "",
     "none",
     kUsed,
     "Axes of the workers, where they are GPUs, FSDP or DeepSpeed; see below."},
    {"rdzv_backend",
     kText,
     "",
     "static",
     kUsed,
     "Several machines: static, ranks are those of machine_rank; c10d, those of the order of "
     "joins, "
     "unless --machine_rank is given; etcd, the same, and main_process_ip and main_process_port "
     "are "
     "those of etcd."},
    {"same_network",
     kBool,
     "",
     "false",
     kElsewhere,
     "Several machines: they meet at main_process_ip and main_process_port either way."},
    {"tpu_env", kList, "", "none", kUsed, "TPU pods: a list of NAME=VALUE, as --env."},
    {"tpu_name", kText, "", "none", kUsed, "As --tpu_name."},
    {"tpu_use_cluster", kBool, "", "false", kUsed, "As --tpu_cluster."},
    {"tpu_use_sudo", kBool, "", "false", kUsed, "As --tpu_use_sudo."},
    {"tpu_vm", kList, "", "none", kUsed, "TPU pods: names of virtual machines, as --vm."},
    {"tpu_zone", kText, "", "none", kElsewhere, "TPU pods: zone."},
    {"use_cpu", kBool, "", "false", kUsed, "As --cpu."},
};

constexpr ConfigKey kDynamoKeys[] = {
    {"backend", kText, "", "no", kUsed, "As --dynamo_backend, in capitals or not."},
    {"mode",
     kChoice,
     "default,reduce-overhead,max-autotune",
     "default",
     kUsed,
     "As --dynamo_mode."},
    {"use_dynamic", kBool, "", "false", kUsed, "As --dynamo_use_dynamic."},
    {"use_fullgraph", kBool, "", "false", kUsed, "As --dynamo_use_fullgraph."},
    {"use_regional_compilation",
     kBool,
     "",
     "false",
     kUsed,
     "As --dynamo_use_regional_compilation."},
};

}  // namespace

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

std::span<const ConfigKey> dynamo_keys() {
  return kDynamoKeys;
}

const ConfigKey* find_config_key(std::string_view name) {
  const auto* found = std::find_if(
      std::begin(kKeys), std::end(kKeys), [&](const ConfigKey& key) { return key.name == name; });
  return found == std::end(kKeys) ? nullptr : found;
}

std::string_view to_string(ConfigType type) {
  switch (type) {
    case kText:
      return "text";
    case kInteger:
      return "a whole number";
    case kBool:
      return "true or false";
    case kChoice:
      return "one of the choices";
    case kMap:
      return "a map of keys";
    case kList:
      return "a list";
  }
  return "a value";
}

}  // namespace accel::launcher
