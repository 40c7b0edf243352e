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
    {"command_file", kText, "", "none", kElsewhere, "For `accel tpu-config`: a file of commands."},
    {"commands", kList, "", "none", kElsewhere, "For `accel tpu-config`: the commands."},
    {"compute_environment",
     kChoice,
     "LOCAL_MACHINE,AMAZON_SAGEMAKER",
     "LOCAL_MACHINE",
     kUsed,
     "Where the job runs. A file for AMAZON_SAGEMAKER has other keys (docs/guides/clusters.md)."},
    {"debug", kBool, "", "false", kUsed, "Same as --debug."},
    {"deepspeed_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of DeepSpeed, for distributed_type DEEPSPEED (below)."},
    {"distributed_type",
     kChoice,
     kDistributedTypes,
     "must be given",
     kUsed,
     "How the processes work together, and on which devices."},
    {"downcast_bf16", kText, "", "no", kUsed, "Same as --downcast_bf16."},
    {"dynamo_backend", kText, "", "none", kUsed, "Older name of dynamo_config.dynamo_backend."},
    {"dynamo_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of torch.compile for Python scripts (below)."},
    {"enable_cpu_affinity", kBool, "", "false", kUsed, "Same as --enable_cpu_affinity."},
    {"fp16", kBool, "", "false", kUsed, "Older way to write mixed_precision: fp16."},
    {"fp8_config", kMap, "", "none", kUsed, "Options of fp8, for mixed_precision fp8 (below)."},
    {"fsdp_backward_prefetch_policy",
     kText,
     "",
     "",
     kRetired,
     "the key is fsdp_config.fsdp_backward_prefetch"},
    {"fsdp_config", kMap, "", "none", kUsed, "Options of FSDP, for distributed_type FSDP (below)."},
    {"gpu_ids", kText, "", "all", kUsed, "Same as --gpu_ids."},
    {"ipex_config", kMap, "", "", kRetired, "IPEX is part of PyTorch now"},
    {"machine_rank", kInteger, "", "0", kUsed, "Same as --machine_rank."},
    {"main_process_ip", kText, "", "none", kUsed, "Same as --main_process_ip."},
    {"main_process_port", kInteger, "", "none", kUsed, "Same as --main_process_port."},
    {"main_training_function", kText, "", "main", kUsed, "Same as --main_training_function."},
    {"megatron_lm_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of Megatron-LM, for distributed_type MEGATRON_LM (below)."},
    {"mixed_precision", kChoice, "no,fp16,bf16,fp8", "no", kUsed, "Same as --mixed_precision."},
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
     "For workers that mpirun starts. Its key mpirun_hostfile is the same as --mpirun_hostfile."},
    {"num_machines", kInteger, "", "1", kUsed, "Same as --num_machines."},
    {"num_processes",
     kInteger,
     "",
     "1 for NO, otherwise --num_processes is needed",
     kUsed,
     "Same as --num_processes: the number of processes on all machines."},
    {"optimization_level", kText, "", "", kRetired, "the key is fp8_config.opt_level"},
    {"parallelism_config",
     kMap,
     "",
     "none",
     kUsed,
     "Sizes of the device mesh, for GPUs, FSDP or DeepSpeed (below)."},
    {"rdzv_backend",
     kText,
     "",
     "static",
     kUsed,
     "Several machines. static: machine_rank sets the ranks. c10d: the order of joining sets "
     "them, unless --machine_rank is given. etcd: as c10d; main_process_ip and main_process_port "
     "are the address of etcd."},
    {"same_network",
     kBool,
     "",
     "false",
     kElsewhere,
     "Several machines. They meet at main_process_ip and main_process_port in any case."},
    {"tpu_env", kList, "", "none", kUsed, "TPU pods: a list of NAME=VALUE, the same as --env."},
    {"tpu_name", kText, "", "none", kUsed, "Same as --tpu_name."},
    {"tpu_use_cluster", kBool, "", "false", kUsed, "Same as --tpu_cluster."},
    {"tpu_use_sudo", kBool, "", "false", kUsed, "Same as --tpu_use_sudo."},
    {"tpu_vm", kList, "", "none", kUsed, "TPU pods: names of virtual machines, the same as --vm."},
    {"tpu_zone", kText, "", "none", kElsewhere, "For `accel tpu-config`: the zone of the pod."},
    {"use_cpu", kBool, "", "false", kUsed, "Same as --cpu."},
};

constexpr ConfigKey kDynamoKeys[] = {
    {"backend",
     kText,
     "",
     "no",
     kUsed,
     "Same as --dynamo_backend. Upper and lower case are the same."},
    {"mode",
     kChoice,
     "default,reduce-overhead,max-autotune",
     "default",
     kUsed,
     "Same as --dynamo_mode."},
    {"use_dynamic", kBool, "", "false", kUsed, "Same as --dynamo_use_dynamic."},
    {"use_fullgraph", kBool, "", "false", kUsed, "Same as --dynamo_use_fullgraph."},
    {"use_regional_compilation",
     kBool,
     "",
     "false",
     kUsed,
     "Same as --dynamo_use_regional_compilation."},
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
