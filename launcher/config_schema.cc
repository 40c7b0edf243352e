#include "launcher/config_schema.h"

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
     "Where the job runs; only LOCAL_MACHINE for now."},
    {"debug", kBool, "", "false", kUsed, "As --debug."},
    {"deepspeed_config", kMap, "", "none", kElsewhere, "Options of DeepSpeed."},
    {"distributed_type",
     kChoice,
     kDistributedTypes,
     "must be given",
     kUsed,
     "How the processes work together; NO, MULTI_CPU, MULTI_GPU, and FSDP with --cpu for now (the "
     "others: copies, with --cpu)."},
    {"downcast_bf16", kText, "", "no", kElsewhere, "TPU."},
    {"dynamo_backend", kText, "", "none", kUsed, "Older form of dynamo_config.dynamo_backend."},
    {"dynamo_config",
     kMap,
     "",
     "none",
     kUsed,
     "Options of torch.compile for Python scripts, see below."},
    {"enable_cpu_affinity", kBool, "", "false", kUsed, "As --enable_cpu_affinity."},
    {"fp16", kBool, "", "false", kUsed, "Older form of mixed_precision: fp16."},
    {"fp8_config", kMap, "", "none", kElsewhere, "Options of fp8."},
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
    {"main_training_function", kText, "", "main", kElsewhere, "TPU: function to start."},
    {"megatron_lm_config", kMap, "", "none", kElsewhere, "Options of Megatron-LM."},
    {"mixed_precision", kChoice, "no,fp16,bf16,fp8", "no", kUsed, "As --mixed_precision."},
    {"mpirun_ccl",
     kText,
     "",
     "",
     kRetired,
     "mpirun is configured by mpirun_config.mpirun_hostfile"},
    {"mpirun_config", kMap, "", "none", kElsewhere, "Options of mpirun."},
    {"num_machines", kInteger, "", "1", kUsed, "As --num_machines."},
    {"num_processes",
     kInteger,
     "",
     "1 for NO, else to be given with --num_processes",
     kUsed,
     "As --num_processes: the number of all processes."},
    {"optimization_level", kText, "", "", kRetired, "the key is fp8_config.opt_level"},
    {"parallelism_config", kMap, "", "none", kElsewhere, "Sizes of the parallel dimensions."},
    {"rdzv_backend", kText, "", "static", kElsewhere, "How several machines find each other."},
    {"same_network", kBool, "", "false", kElsewhere, "Several machines: all in one network."},
    {"tpu_env", kList, "", "none", kElsewhere, "TPU pods: environment."},
    {"tpu_name", kText, "", "none", kElsewhere, "TPU pods: name."},
    {"tpu_use_cluster", kBool, "", "false", kElsewhere, "TPU pods."},
    {"tpu_use_sudo", kBool, "", "false", kElsewhere, "TPU pods."},
    {"tpu_vm", kList, "", "none", kElsewhere, "TPU pods: names of virtual machines."},
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

constexpr ConfigKey kFsdpKeys[] = {
    {"activation_checkpointing", kBool, "", "false", kUsed, "FSDP_ACTIVATION_CHECKPOINTING"},
    {"activation_checkpointing_offload",
     kBool,
     "",
     "false",
     kUsed,
     "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD"},
    {"auto_wrap_policy",
     kChoice,
     "TRANSFORMER_BASED_WRAP,SIZE_BASED_WRAP,NO_WRAP",
     "NO_WRAP",
     kUsed,
     "FSDP_AUTO_WRAP_POLICY"},
    {"backward_prefetch",
     kChoice,
     "BACKWARD_PRE,BACKWARD_POST,NO_PREFETCH",
     "none",
     kUsed,
     "FSDP_BACKWARD_PREFETCH"},
    {"cpu_ram_efficient_loading", kBool, "", "true", kUsed, "FSDP_CPU_RAM_EFFICIENT_LOADING"},
    {"forward_prefetch", kBool, "", "false", kUsed, "FSDP_FORWARD_PREFETCH"},
    {"ignored_modules", kText, "", "none", kUsed, "FSDP_IGNORED_MODULES"},
    {"min_num_params", kInteger, "", "0", kUsed, "FSDP_MIN_NUM_PARAMS"},
    {"offload_params", kBool, "", "false", kUsed, "FSDP_OFFLOAD_PARAMS"},
    {"reshard_after_forward",
     kChoice,
     "true,false,FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,HYBRID_SHARD_ZERO2",
     "true",
     kUsed,
     "FSDP_RESHARD_AFTER_FORWARD"},
    {"sharding_strategy",
     kChoice,
     "FULL_SHARD,SHARD_GRAD_OP,NO_SHARD,HYBRID_SHARD,HYBRID_SHARD_ZERO2,1,2,3,4,5",
     "FULL_SHARD",
     kUsed,
     "FSDP_SHARDING_STRATEGY"},
    {"state_dict_type",
     kChoice,
     "FULL_STATE_DICT,LOCAL_STATE_DICT,SHARDED_STATE_DICT",
     "none",
     kUsed,
     "FSDP_STATE_DICT_TYPE"},
    {"sync_module_states", kBool, "", "true", kUsed, "FSDP_SYNC_MODULE_STATES"},
    {"transformer_layer_cls_to_wrap", kText, "", "none", kUsed, "FSDP_TRANSFORMER_CLS_TO_WRAP"},
    {"use_orig_params", kBool, "", "true", kUsed, "FSDP_USE_ORIG_PARAMS"},
    {"version", kChoice, "1,2", "1", kUsed, "FSDP_VERSION"},
};

}  // namespace

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

std::span<const ConfigKey> dynamo_keys() {
  return kDynamoKeys;
}

std::span<const ConfigKey> fsdp_keys() {
  return kFsdpKeys;
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
