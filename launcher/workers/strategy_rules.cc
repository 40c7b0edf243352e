#include "launcher/workers/strategy_rules.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "launcher/documents/config_document.h"
#include "launcher/text/faults.h"
#include "runtime/byte_size.h"
#include "runtime/environment_value.h"
#include "runtime/json_argument.h"
#include "runtime/text/letter_case.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

// 1 when it is not set.
std::int64_t size_of(const EnvMap& variables, const std::string& name) {
  const std::string text = value_in(variables, name);
  return text.empty() ? 1 : std::strtoll(text.c_str(), nullptr, 10);
}

// Saturates: sizes come from users.
std::int64_t times(std::int64_t one, std::int64_t other) {
  constexpr std::int64_t kMost = 1'000'000'000;
  return std::min(one, kMost) * std::min(other, kMost);
}

// The peer takes the JSON itself too, as it is or in base64, where no file has that name.
Result<std::string> deepspeed_json(const std::string& argument, std::string& name) {
  std::error_code ignored;
  if (!std::filesystem::exists(argument, ignored)) {
    if (auto json = json_in_place_of_path(argument)) {
      name = "the JSON of --deepspeed_config_file";
      return *std::move(json);
    }
  }
  return read_text_file(argument, kMostConfigBytes, "the configuration file of DeepSpeed");
}

void check_json_file(const std::string& argument, Faults& faults) {
  std::string name = argument;
  const auto text = deepspeed_json(argument, name);
  if (!text) {
    faults.add(Error(text.error().code(),
                     text.error().message(),
                     "give --deepspeed_config_file PATH of a JSON file, the JSON itself, or leave "
                     "it out"));
    return;
  }
  auto document = parse_config(*text, ConfigFormat::kJson, name);
  if (!document) faults.add(std::move(document).error());
}

}  // namespace

void check_fsdp(const StrategyRequest& request,
                EnvMap& variables,
                std::vector<std::string>& notices,
                Faults& faults) {
  const bool is_version2 = value_in(variables, "FSDP_VERSION") == "2";
  if (value_in(variables, "FSDP_CPU_RAM_EFFICIENT_LOADING") == "true" &&
      value_in(variables, "FSDP_SYNC_MODULE_STATES") == "false") {
    faults.add(usage_error(
        "When using `--fsdp_cpu_ram_efficient_loading` set `--fsdp_sync_module_states` to `True`",
        "give --fsdp_sync_module_states true, or --fsdp_cpu_ram_efficient_loading false"));
  }
  const std::string live_bytes = value_in(variables, "ACCEL_FSDP_MAX_LIVE_BYTES");
  if (!live_bytes.empty() && !parse_byte_size(live_bytes)) {
    faults.add(Error(ErrorCode::kInvalidArgument,
                     (request.line.has("fsdp_max_live_bytes") ? "--" : request.file->path + ": ") +
                         std::string("fsdp_max_live_bytes is '") + live_bytes +
                         "', expected a number of bytes, as 1048576, 512M or 2G",
                     "give --fsdp_max_live_bytes 512M, or leave it out"));
  }
  // `accelerate config` writes the strategy of version 1 under the key of version 2, where the peer's
  // workers do not look for it.
  const std::string reshards = value_in(variables, "FSDP_RESHARD_AFTER_FORWARD");
  const bool is_strategy = reshards != "true" && reshards != "false" && !reshards.empty();
  if (is_strategy && is_version2) {
    faults.add(
        usage_error("--fsdp_reshard_after_forward is '" + reshards +
                        "', expected true or false with --fsdp_version 2",
                    "give true for FULL_SHARD and HYBRID_SHARD, false for the other strategies"));
  } else if (is_strategy && !request.is_said("fsdp_sharding_strategy")) {
    variables["FSDP_SHARDING_STRATEGY"] = uppercase(reshards);
  }
  if (is_version2 && request.is_said("fsdp_sharding_strategy")) {
    const bool is_flag = request.line.has("fsdp_sharding_strategy");
    notices.push_back(
        (is_flag ? "--" : request.file->path + ": ") +
        "fsdp_sharding_strategy is for version 1 of FSDP and has no effect: with version 2 give "
        "fsdp_reshard_after_forward true or false" +
        (is_flag ? "" : " (`accel to-fsdp2` converts the file)"));
  }
}

void check_deepspeed(const EnvMap& variables, Faults& faults) {
  const std::string json = value_in(variables, "ACCELERATE_DEEPSPEED_CONFIG_FILE");
  if (!json.empty() && json != "none") {
    check_json_file(json, faults);
    return;  // the rest may stand there
  }
  for (const char* what : {"optimizer", "param"}) {
    const std::string variable = "ACCELERATE_DEEPSPEED_OFFLOAD_" + uppercase(what);
    const bool is_nvme = value_in(variables, variable + "_DEVICE") == "nvme";
    if (!is_nvme || !value_in(variables, variable + "_NVME_PATH").empty()) continue;
    faults.add(
        usage_error(std::string("--offload_") + what + "_device is nvme, but no folder is named",
                    std::string("give --offload_") + what + "_nvme_path PATH"));
  }
}

void check_parallelism(const StrategyRequest& request, EnvMap& variables, Faults& faults) {
  const bool is_by_flag = request.line.is_on("use_parallelism_config");
  if (is_by_flag && value_in(variables, "FSDP_VERSION") != "2") {
    faults.add(usage_error(
        "You cannot use `--use_parallelism_config` without `--use_fsdp` and `--fsdp_version=2`. ",
        "give --use_fsdp --fsdp_version 2"));
  }
  const std::string prefix = "PARALLELISM_CONFIG_";
  const bool divides_context = size_of(variables, prefix + "CP_SIZE") > 1;
  const bool divides_heads = size_of(variables, prefix + "SP_SIZE") > 1;
  if (divides_context && divides_heads) {
    faults.add(usage_error(
        "--parallelism_config_cp_size and --parallelism_config_sp_size are both above 1",
        "divide sequences in one way: leave one of the two at 1"));
  }
  if (!divides_context) variables.erase(prefix + "CP_COMM_STRATEGY");
  if (divides_heads) return;
  for (const char* name : {"SP_SEQ_LENGTH", "SP_SEQ_LENGTH_IS_VARIABLE", "SP_ATTN_IMPLEMENTATION"})
    variables.erase(prefix + name);
}

void check_sizes(const StrategySettings& settings, int num_processes, Faults& faults) {
  const auto size = [&](const char* name) { return size_of(settings.variables, name); };
  if (settings.megatron) {
    const std::int64_t tensor = size("MEGATRON_LM_TP_DEGREE");
    const std::int64_t stages = size("MEGATRON_LM_PP_DEGREE");
    const std::int64_t context = size("MEGATRON_LM_CONTEXT_PARALLEL_SIZE");
    const std::int64_t model = times(times(tensor, stages), context);
    if (num_processes % model != 0) {
      faults.add(usage_error("a model of Megatron-LM takes " + std::to_string(model) +
                                 " processes (tp_degree " + std::to_string(tensor) +
                                 " x pp_degree " + std::to_string(stages) +
                                 " x context_parallel_size " + std::to_string(context) +
                                 "), which do not divide " + std::to_string(num_processes),
                             "give --num_processes of a multiple of " + std::to_string(model)));
    }
  }
  if (!settings.parallelism) return;
  std::int64_t product = 1;
  std::string axes;
  for (const char* name : {"DP_REPLICATE", "DP_SHARD", "TP", "CP", "SP"}) {
    const std::int64_t length = size((std::string("PARALLELISM_CONFIG_") + name + "_SIZE").c_str());
    product = times(product, length);
    axes += (axes.empty() ? "" : " x ") + std::string(name) + " " + std::to_string(length);
  }
  // Sequences by heads: DeepSpeed lays out the rest by itself.
  const bool is_whole = size("PARALLELISM_CONFIG_SP_SIZE") > 1 ? num_processes % product == 0
                                                               : num_processes == product;
  if (product == 1 || is_whole) return;
  faults.add(usage_error("the axes of the parallelism configuration hold " +
                             std::to_string(product) + " processes (" + axes + "), but " +
                             std::to_string(num_processes) + " are started",
                         "give --num_processes " + std::to_string(product) + ", or other sizes"));
}

}  // namespace accel::launcher
