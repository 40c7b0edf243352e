#include "libaccel/engine/settings/deepspeed_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <initializer_list>
#include <limits>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

#include <accel/error.h>

namespace accel::sharding {
namespace {

using nlohmann::json;

// How DeepSpeed goes about it, not what comes of it.
constexpr std::array kTuning = {
    "allgather_bucket_size",
    "allgather_partitions",
    "contiguous_gradients",
    "cpu_offload_use_pin_memory",
    "elastic_checkpoint",
    "ignore_unused_parameters",
    "load_from_fp32_weights",
    "log_trace_cache_warnings",
    "memory_efficient_linear",
    "overlap_comm",
    "reduce_bucket_size",
    "reduce_scatter",
    "round_robin_gradients",
    "stage3_gather_16bit_weights_on_model_save",
    "stage3_gather_fp16_weights_on_model_save",
    "stage3_max_live_parameters",
    "stage3_max_reuse_distance",
    "stage3_model_persistence_threshold",
    "stage3_module_granularity_threshold",
    "stage3_param_persistence_threshold",
    "stage3_prefetch_bucket_size",
    "stage3_use_all_reduce_for_fetch_params",
    "sub_group_size",
    "use_multi_rank_bucket_allreduce",
};

// Of offload_optimizer and offload_param: buffers between host memory and a GPU or a disk.
constexpr std::array kOffloadTuning = {
    "buffer_count",
    "buffer_size",
    "fast_init",
    "max_in_cpu",
    "nvme_path",
    "pin_memory",
    "pipeline_read",
    "pipeline_write",
    "ratio",
};

// How files of the device nvme are read and written.
constexpr std::array kAio = {
    "block_size",
    "intra_op_parallelism",
    "overlap_events",
    "queue_depth",
    "single_submit",
    "thread_count",
    "use_gds",
};

// Batches are the loader's, and reports DeepSpeed's.
constexpr std::array kReports = {
    "comms_logger",
    "csv_monitor",
    "dump_state",
    "flops_profiler",
    "memory_breakdown",
    "steps_per_print",
    "tensorboard",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "wall_clock_breakdown",
    "wandb",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
};

// Of fp16: inputs are cast by autocast here.
constexpr std::array kCasting = {"auto_cast"};

template <std::size_t N>
bool is_among(const std::array<const char*, N>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What a file may say of anything without asking for it.
bool asks_for_nothing(const json& value) {
  if (value.is_object())
    return value.empty() || asks_for_nothing(value.value("enabled", json(true)));
  return value.is_null() || value == false || value == "auto" || value == "none";
}

class Reader {
 public:
  Reader(const json& root, std::string path) : root_(root), path_(std::move(path)) {}

  DeepSpeedFile read() {
    if (!root_.is_object()) throw invalid("", root_, "a map of DeepSpeed's options");
    if (!root_.contains("zero_optimization"))
      throw invalid("zero_optimization", json(), "a section with the stage of ZeRO");
    for (const auto& [key, value] : root_.items()) {
      if (key == "zero_optimization") {
        read_zero(value);
      } else if (key == "fp16") {
        read_fp16(value);
      } else if (key == "bf16" || key == "bfloat16") {
        file_.is_bf16 = flag(key + ".", value, "enabled");
      } else if (key == "aio") {
        if (!value.is_object()) throw invalid(key, value, "a map");
        note_others("aio.", value, kAio, {});
      } else if (key == "gradient_clipping") {
        read_clipping(value);
      } else if (key == "optimizer" && !asks_for_nothing(value)) {
        file_.optimizer = parse_optimizer_section(value, path_);
      } else if (key == "scheduler" && !asks_for_nothing(value)) {
        file_.scheduler = parse_scheduler_section(value, path_);
      } else if (key != "gradient_accumulation_steps") {
        note_or_refuse("", key, value, is_among(kReports, key));
      }
    }
    file_.gradient_accumulation_steps =
        number("", root_, "gradient_accumulation_steps", 1, 1 << 30);
    if (!root_.contains("gradient_accumulation_steps")) file_.gradient_accumulation_steps = 1;
    if (!without_effect_.empty()) {
      file_.notices.insert(file_.notices.begin(),
                           path_ + ": " + without_effect_ +
                               " have no effect: DeepSpeed's own buffers, messages and reports");
    }
    return std::move(file_);
  }

 private:
  void read_zero(const json& zero) {
    if (!zero.is_object()) throw invalid("zero_optimization", zero, "a map");
    const std::string section = "zero_optimization.";
    file_.zero_stage = number(section, zero, "stage", 0, 3);
    file_.offload_optimizer_device = device(section, zero, "offload_optimizer");
    file_.offload_param_device = device(section, zero, "offload_param");
    if (file_.offload_optimizer_device == "nvme")
      file_.offload_optimizer_nvme_path =
          folder(section + "offload_optimizer.", zero["offload_optimizer"]);
    if (file_.offload_param_device == "nvme")
      file_.offload_param_nvme_path = folder(section + "offload_param.", zero["offload_param"]);
    // Older names.
    const auto wants_cpu = [&](const char* key, const std::optional<std::string>& device) {
      return flag(section, zero, key) == true && !device;
    };
    if (wants_cpu("cpu_offload", file_.offload_optimizer_device))
      file_.offload_optimizer_device = "cpu";
    if (wants_cpu("cpu_offload_param", file_.offload_param_device))
      file_.offload_param_device = "cpu";
    note_others(
        section,
        zero,
        kTuning,
        {"stage", "offload_optimizer", "offload_param", "cpu_offload", "cpu_offload_param"});
    const auto live = zero.find("stage3_max_live_parameters");
    if (live == zero.end() || asks_for_nothing(*live)) return;
    file_.notices.push_back(
        path_ +
        ": stage3_max_live_parameters counts parameters and is not read; over several nodes "
        "ACCEL_FSDP_MAX_LIVE_BYTES says how many bytes of them are in memory at once");
  }

  // Defaults: DeepSpeed's.
  void read_fp16(const json& fp16) {
    const std::string section = "fp16.";
    file_.is_fp16 = flag(section, fp16, "enabled");
    if (file_.is_fp16 == false) return;
    GradScalerKwargs scale;
    const double fixed = amount(section, fp16, "loss_scale").value_or(0);
    scale.dynamic = fixed == 0;
    scale.init_scale =
        scale.dynamic
            ? std::ldexp(1.0, number(section, fp16, "initial_scale_power", 0, 127).value_or(16))
            : fixed;
    scale.growth_interval = number(section, fp16, "loss_scale_window", 1, 1 << 30).value_or(1000);
    scale.hysteresis = number(section, fp16, "hysteresis", 1, 1 << 30).value_or(2);
    scale.min_scale = amount(section, fp16, "min_loss_scale").value_or(1);
    scale.consecutive_hysteresis = flag(section, fp16, "consecutive_hysteresis").value_or(false);
    file_.loss_scale = scale;
    if (file_.is_fp16 == true)
      note_others(section,
                  fp16,
                  kCasting,
                  {"enabled",
                   "loss_scale",
                   "initial_scale_power",
                   "loss_scale_window",
                   "hysteresis",
                   "min_loss_scale",
                   "consecutive_hysteresis"});
  }

  void read_clipping(const json& value) {
    if (value.is_number() && value.get<double>() >= 0) {
      file_.gradient_clipping = value.get<double>();
    } else if (value == "auto") {
      file_.clips_automatically = true;
    } else if (!asks_for_nothing(value)) {
      throw invalid("gradient_clipping", value, "0, a norm above it, or \"auto\"");
    }
  }

  template <std::size_t N>
  void note_others(const std::string& section,
                   const json& values,
                   const std::array<const char*, N>& without_effect,
                   std::initializer_list<const char*> known) {
    for (const auto& [key, value] : values.items()) {
      const bool is_known = std::find(known.begin(), known.end(), key) != known.end();
      if (!is_known) note_or_refuse(section, key, value, is_among(without_effect, key));
    }
  }

  void note_or_refuse(const std::string& section,
                      const std::string& key,
                      const json& value,
                      bool is_without_effect) {
    if (asks_for_nothing(value)) return;
    if (is_without_effect) {
      if (noted_.insert(key).second) without_effect_ += (without_effect_.empty() ? "" : ", ") + key;
      return;
    }
    throw Error(ErrorCode::kUnsupported,
                path_ + ": " + section + key + " is not part of this build",
                "take it out of the file");
  }

  std::optional<int> number(
      const std::string& section, const json& values, const char* key, int least, int most) const {
    const auto found = values.find(key);
    if (found == values.end() || asks_for_nothing(*found)) return std::nullopt;
    const double value = found->is_number() ? found->get<double>() : -1;
    if (value < least || value > most || value != static_cast<int>(value)) {
      throw invalid(section + key,
                    *found,
                    "a whole number from " + std::to_string(least) +
                        (most < 4 ? " to " + std::to_string(most) : " on") + ", or \"auto\"");
    }
    return static_cast<int>(value);
  }

  // A number from 0 on.
  std::optional<double> amount(const std::string& section,
                               const json& values,
                               const char* key) const {
    const auto found = values.find(key);
    if (found == values.end() || asks_for_nothing(*found)) return std::nullopt;
    if (!found->is_number() || found->get<double>() < 0 ||
        found->get<double>() > std::numeric_limits<float>::max())
      throw invalid(section + key, *found, "a number from 0 on that fp32 holds, or \"auto\"");
    return found->get<double>();
  }

  std::optional<bool> flag(const std::string& section, const json& values, const char* key) const {
    if (!values.is_object()) throw invalid(section + key, values, "a map with it");
    const auto found = values.find(key);
    if (found == values.end() || found->is_null() || *found == "auto") return std::nullopt;
    if (!found->is_boolean()) throw invalid(section + key, *found, "true, false or \"auto\"");
    return found->get<bool>();
  }

  std::optional<std::string> device(const std::string& section, const json& zero, const char* key) {
    const auto found = zero.find(key);
    if (found == zero.end() || found->is_null()) return std::nullopt;
    if (!found->is_object()) throw invalid(section + key, *found, "a map with a device");
    const auto named = found->find("device");
    if (named == found->end() || named->is_null() || *named == "auto") return std::nullopt;
    if (!named->is_string()) throw invalid(section + key + ".device", *named, "a text");
    if (*named == "nvme") {
      note_others(section + key + ".", *found, kOffloadTuning, {"device", "nvme_path"});
    } else if (*named != "none") {
      note_others(section + key + ".", *found, kOffloadTuning, {"device"});
    }
    return named->get<std::string>();
  }

  // Nothing: the plugin or its variable names it.
  std::optional<std::string> folder(const std::string& section, const json& offload) {
    const auto named = offload.find("nvme_path");
    if (named == offload.end() || named->is_null() || *named == "auto" || *named == "none")
      return std::nullopt;
    if (!named->is_string()) throw invalid(section + "nvme_path", *named, "a folder");
    return named->get<std::string>();
  }

  [[nodiscard]] Error invalid(const std::string& key,
                              const json& value,
                              const std::string& expected) const {
    return Error(ErrorCode::kConfigInvalidValue,
                 path_ + ": " + (key.empty() ? "the file" : key) + " is " +
                     value.dump(-1, ' ', false, json::error_handler_t::replace).substr(0, 64) +
                     ", expected " + expected,
                 "correct it in the file");
  }

  const json& root_;
  std::string path_;
  std::string without_effect_;
  std::set<std::string> noted_;
  DeepSpeedFile file_;
};

}  // namespace

DeepSpeedFile parse_deepspeed_file(std::string_view text, const std::string& path) {
  json root;
  try {
    root = json::parse(text);
  } catch (const json::parse_error& error) {
    throw Error(ErrorCode::kConfigSyntax, path + " is no JSON: " + error.what());
  }
  DeepSpeedFile file = Reader(root, path).read();
  auto config = nlohmann::ordered_json::parse(text);  // in the file's order
  if (!config.contains("gradient_accumulation_steps")) config["gradient_accumulation_steps"] = 1;
  file.config = config.dump();
  return file;
}

}  // namespace accel::sharding
