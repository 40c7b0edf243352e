#include "runtime/unserved_variables.h"

#include <algorithm>

#include "runtime/split.h"
#include "runtime/text/letter_case.h"

namespace accel {
namespace {

constexpr std::string_view kMegatron = "ACCELERATE_USE_MEGATRON_LM";
constexpr std::string_view kDynamo = "ACCELERATE_DYNAMO_BACKEND";
constexpr std::string_view kDataParallelAlone =
    "the ranks divide batches, gradients, parameters and states, but no layer and no sequence";

constexpr UnservedVariable kUnserved[] = {
    {.name = kMegatron,
     .flag = "--use_megatron_lm",
     .key = "megatron_lm_config",
     .asks_nothing = "false,0",
     .reason = "Megatron-LM is a library of Python",
     .remedy = "leave it out; --use_fsdp and --use_deepspeed divide a model of this program"},
    {.name = "MEGATRON_LM_*", .treatment = Unserved::kDependent, .counts_with = kMegatron},
    {.name = "PARALLELISM_CONFIG_TP_SIZE",
     .flag = "--parallelism_config_tp_size",
     .key = "parallelism_config.parallelism_config_tp_size",
     .asks_nothing = "1",
     .reason = kDataParallelAlone,
     .remedy = "set it to 1, and use --use_fsdp with all ranks"},
    {.name = "PARALLELISM_CONFIG_CP_SIZE",
     .flag = "--parallelism_config_cp_size",
     .key = "parallelism_config.parallelism_config_cp_size",
     .asks_nothing = "1",
     .reason = kDataParallelAlone,
     .remedy = "set it to 1, and use --use_fsdp with all ranks"},
    {.name = "PARALLELISM_CONFIG_CP_*",
     .treatment = Unserved::kDependent,
     .counts_with = "PARALLELISM_CONFIG_CP_SIZE"},
    {.name = "PARALLELISM_CONFIG_SP_SIZE",
     .flag = "--parallelism_config_sp_size",
     .key = "parallelism_config.parallelism_config_sp_size",
     .asks_nothing = "1",
     .reason = kDataParallelAlone,
     .remedy = "set it to 1, and use --use_fsdp with all ranks"},
    {.name = "PARALLELISM_CONFIG_SP_*",
     .treatment = Unserved::kDependent,
     .counts_with = "PARALLELISM_CONFIG_SP_SIZE"},
    {.name = kDynamo,
     .treatment = Unserved::kSaid,
     .flag = "--dynamo_backend",
     .key = "dynamo_config.dynamo_backend",
     .asks_nothing = "no",
     .reason = "torch.compile compiles programs of Python; operators run one by one here"},
    {.name = "ACCELERATE_DYNAMO_*", .treatment = Unserved::kDependent, .counts_with = kDynamo},
    {.name = "ACCELERATE_FP8_*",
     .treatment = Unserved::kDependent,
     .counts_with = "ACCELERATE_MIXED_PRECISION"},
    {.name = "ACCELERATE_DEEPSPEED_ZERO3_INIT",
     .treatment = Unserved::kSaid,
     .flag = "--zero3_init_flag",
     .key = "deepspeed_config.zero3_init_flag",
     .asks_nothing = "false,0",
     .counts_with = "ACCELERATE_USE_DEEPSPEED",
     .reason = "prepare() divides a model after it was made; --fsdp_cpu_ram_efficient_loading "
               "with --use_fsdp makes it on rank 0 alone"},
    {.name = "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
     .treatment = Unserved::kSaid,
     .flag = "--zero3_save_16bit_model",
     .key = "deepspeed_config.zero3_save_16bit_model",
     .asks_nothing = "false,0",
     .counts_with = "ACCELERATE_USE_DEEPSPEED",
     .reason = "save_model() always writes whole parameters, in the type that they train in"},
    {.name = "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES",
     .treatment = Unserved::kSaid,
     .flag = "--deepspeed_moe_layer_cls_names",
     .key = "deepspeed_config.deepspeed_moe_layer_cls_names",
     .counts_with = "ACCELERATE_USE_DEEPSPEED",
     .reason = "experts need no mark: a unit is fetched when one of its parameters is read"},
    {.name = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
     .treatment = Unserved::kDependent,
     .counts_with = "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE"},
    {.name = "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
     .treatment = Unserved::kDependent,
     .counts_with = "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE"},
    {.name = "ACCELERATE_SAGEMAKER_DISTRIBUTED_TYPE",
     .key = "distributed_type",
     .asks_nothing = "no",
     .counts_with = "ACCELERATE_USE_SAGEMAKER",
     .reason = "the libraries of SageMaker are of Python",
     .remedy = "set distributed_type to NO in the file, and start accel-launch in the container"},
    {.name = "XLA_USE_BF16",
     .flag = "--tpu",
     .key = "distributed_type",
     .asks_nothing = "0",
     .reason = "LibTorch has no XLA: this program has no TPU",
     .remedy = "launch it without --tpu, and with --mixed_precision bf16"},
    {.name = "XLA_DOWNCAST_BF16",
     .flag = "--downcast_bf16",
     .key = "downcast_bf16",
     .asks_nothing = "0",
     .reason = "LibTorch has no XLA: this program has no TPU",
     .remedy = "launch it without --tpu, and with --mixed_precision bf16"},
};

bool asks_nothing(std::string_view value, std::string_view nothings) {
  const std::vector<std::string_view> words = split(nothings, ',');
  return value.empty() || std::ranges::find(words, lowercase(value)) != words.end();
}

bool is_on(const EnvLookup& env, std::string_view name) {
  return name.empty() || !asks_nothing(env(name).value_or(""), "false,f,0,no,n,off");
}

// "ACCELERATE_DYNAMO_BACKEND is INDUCTOR (--dynamo_backend, or dynamo_config.dynamo_backend of a file)"
std::string asked(const UnservedVariable& row, const std::string& value) {
  std::string text = std::string(row.name) + " is '" + value + "' (";
  text += row.flag;
  if (!row.key.empty())
    text += (row.flag.empty() ? "" : ", or ") + std::string(row.key) + " of a file";
  return text + ")";
}

}  // namespace

std::span<const UnservedVariable> unserved_variables() {
  return kUnserved;
}

std::vector<std::string> check_unserved_variables(const EnvLookup& env) {
  std::vector<std::string> notices;
  for (const UnservedVariable& row : kUnserved) {
    if (row.treatment == Unserved::kDependent || !is_on(env, row.counts_with)) continue;
    const std::string value = env(row.name).value_or("");
    if (asks_nothing(value, row.asks_nothing)) continue;
    if (row.treatment == Unserved::kRefused) {
      throw Error(ErrorCode::kUnsupported,
                  asked(row, value) + " is not part of this build: " + std::string(row.reason),
                  std::string(row.remedy));
    }
    notices.push_back(asked(row, value) + " has no effect: " + std::string(row.reason));
  }
  return notices;
}

}  // namespace accel
