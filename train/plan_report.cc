#include "train/plan_report.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint_tools/models/memory_estimate.h"
#include "runtime/printable.h"
#include "runtime/text/joined.h"
#include "runtime/text/text_columns.h"

namespace accel::train {
namespace {

using Cells = std::vector<std::string>;

std::string bytes_text(std::int64_t bytes) {
  return launcher::readable_bytes(static_cast<double>(bytes));
}

// What `accel train` is told, for each strategy.
std::string_view flags_of(PlannedStrategy strategy) {
  switch (strategy) {
    case PlannedStrategy::kCopies:
      return "";
    case PlannedStrategy::kZero1:
      return "--use_deepspeed --zero_stage 1";
    case PlannedStrategy::kZero2:
      return "--fsdp SHARD_GRAD_OP";
    case PlannedStrategy::kZero3:
      return "--fsdp FULL_SHARD";
  }
  return "";
}

std::string_view recompute_text(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNone:
      return "none";
    case Recomputation::kSelective:
      return "selective";
    case Recomputation::kFull:
      return "full";
  }
  return "";
}

std::string name_of(const PlanSettings& settings, const StrategyRow& row) {
  std::string name =
      settings.num_processes == 1 ? "one process" : std::string(to_string(row.strategy));
  if (row.recomputation != Recomputation::kNone)
    name += ", " + std::string(recompute_text(row.recomputation)) + " recomputation";
  if (!row.layers.empty())
    name += " of " + std::to_string(row.layers.size()) +
            (row.layers.size() == 1 ? " layer" : " layers");
  if (row.optimizer_on_disk) name += ", optimizer on disk";
  return name;
}

int stage_of(PlannedStrategy strategy) {
  return static_cast<int>(strategy);  // they are in the order of the stages
}
static_assert(static_cast<int>(PlannedStrategy::kCopies) == 0 &&
              static_cast<int>(PlannedStrategy::kZero3) == 3);

// What `accel train` is told for it, flags and then variables.
std::string words_of(const StrategyRow& row, const PlanSettings& settings) {
  if (row.optimizer_on_disk) {
    return "--use_deepspeed --zero_stage " + std::to_string(stage_of(row.strategy)) +
           " --offload_optimizer_device nvme --offload_optimizer_nvme_path " +
           (settings.optimizer_folder.empty() ? "FOLDER" : printable(settings.optimizer_folder));
  }
  if (row.recomputation == Recomputation::kNone) return std::string(flags_of(row.strategy));
  std::string text = row.strategy == PlannedStrategy::kCopies ? "--fsdp NO_SHARD"
                                                              : std::string(flags_of(row.strategy));
  text +=
      "; FSDP_ACTIVATION_CHECKPOINTING=true FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP "
      "FSDP_TRANSFORMER_CLS_TO_WRAP=" +
      (row.layers.empty() ? settings.layer_class : joined(row.layers, ","));
  if (row.recomputation == Recomputation::kSelective)
    text += " ACCEL_FSDP_RECOMPUTE_GRANULARITY=selective";
  return text;
}

std::string aligned(const std::vector<Cells>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const Cells& row : rows)
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i)
      line += i == 0 ? padded_columns(row[i], widths[i]) : "  " + right_columns(row[i], widths[i]);
    text += line + "\n";
  }
  return text;
}

// "1.25 s", with three digits.
std::string seconds_text(double seconds) {
  constexpr double kMilli = 1e-3;
  std::array<char, 32> text{};
  const bool is_short = seconds < 1;
  std::snprintf(text.data(),
                text.size(),
                "%.3g %s",
                is_short ? seconds / kMilli : seconds,
                is_short ? "ms" : "s");
  return text.data();
}

std::string exact_text(std::int64_t bytes) {
  return bytes_text(bytes) + " (" + std::to_string(bytes) + " bytes)";
}

std::string missing_text(const TrainingPlan& plan, const PlanSettings& settings) {
  std::string text = "nothing fits: the least, " + name_of(settings, *plan.least) + ", takes " +
                     bytes_text(plan.least->memory.peak) + " of " + bytes_text(*plan.limit) + "; " +
                     exact_text(plan.missing) + " are missing\n";
  std::string changes;
  if (plan.smaller_batch)
    changes += "  --batch_size " + std::to_string(*plan.smaller_batch) + " in place of " +
               std::to_string(settings.batch_size) + "\n";
  if (plan.more_processes)
    changes += "  --num_processes " + std::to_string(*plan.more_processes) + " in place of " +
               std::to_string(settings.num_processes) + "\n";
  if (plan.on_disk) {
    changes += "  " + name_of(settings, *plan.on_disk) + ": " +
               exact_text(plan.on_disk->node_disk) + " of a disk on each machine";
    if (plan.disk_free) changes += ", which has " + bytes_text(*plan.disk_free) + " free";
    changes += " (" + words_of(*plan.on_disk, settings) + ")\n";
  }
  if (changes.empty())
    return text + "neither smaller batches, more processes nor a disk for the optimizer help\n";
  return text + "it would fit with one of:\n" + changes;
}

std::string fit_text(const TrainingPlan& plan, const PlanSettings& settings) {
  if (plan.chosen) {
    const std::string words = words_of(*plan.chosen, settings);
    std::string text = "fastest that fits: " + name_of(settings, *plan.chosen);
    if (!words.empty()) text += " (" + words + ")";
    return text + "\n";
  }
  return missing_text(plan, settings);
}

}  // namespace

std::string plan_table(const TrainingPlan& plan, const PlanSettings& settings) {
  std::vector<Cells> rows = {
      {"strategy", "weights", "gradients", "optimizer", "activations", "shared", "peak", "step"}};
  const bool has_disk = plan.disk_free.has_value();
  if (has_disk) rows.front().emplace_back("disk");
  if (plan.limit || has_disk) rows.front().emplace_back("fits");
  for (const StrategyRow& row : plan.strategies) {
    const PlannedMemory& memory = row.memory;
    rows.push_back({name_of(settings, row),
                    bytes_text(memory.parameters + memory.whole),
                    bytes_text(memory.gradients),
                    bytes_text(memory.optimizer),
                    bytes_text(memory.activations),
                    bytes_text(memory.communication),
                    bytes_text(memory.peak),
                    seconds_text(row.seconds)});
    if (has_disk) rows.back().emplace_back(bytes_text(memory.disk));
    if (plan.limit || has_disk) rows.back().emplace_back(row.fits ? "yes" : "no");
  }
  std::string text = std::to_string(plan.num_parameters) + " parameters, batches of " +
                     std::to_string(settings.batch_size) + ", " +
                     std::to_string(settings.num_processes) +
                     (settings.num_processes == 1 ? " process" : " processes") +
                     "; memory of one process\n" + aligned(rows);
  if (settings.fit) text += fit_text(plan, settings);
  return text;
}

std::string plan_json(const TrainingPlan& plan, const PlanSettings& settings) {
  nlohmann::ordered_json document = {{"model", settings.model},
                                     {"parameters", plan.num_parameters},
                                     {"flops", plan.flops},
                                     {"num_processes", settings.num_processes},
                                     {"num_machines", settings.num_machines},
                                     {"batch_size", settings.batch_size},
                                     {"memory", nullptr},
                                     {"disk_free", nullptr},
                                     {"rates",
                                      {{"flops", plan.rates.flops},
                                       {"memory_bytes", plan.rates.memory_bytes},
                                       {"network_bytes", plan.rates.network_bytes},
                                       {"disk_bytes", plan.rates.disk_bytes}}},
                                     {"strategies", nlohmann::ordered_json::array()}};
  if (plan.limit) document["memory"] = *plan.limit;
  if (plan.disk_free) document["disk_free"] = *plan.disk_free;
  for (const StrategyRow& row : plan.strategies) {
    const PlannedMemory& memory = row.memory;
    nlohmann::ordered_json entry = {{"strategy", to_string(row.strategy)},
                                    {"recomputation", recompute_text(row.recomputation)},
                                    {"optimizer_on_disk", row.optimizer_on_disk},
                                    {"extra_flops", row.extra_flops},
                                    {"parameters", memory.parameters},
                                    {"whole", memory.whole},
                                    {"gradients", memory.gradients},
                                    {"optimizer", memory.optimizer},
                                    {"activations", memory.activations},
                                    {"communication", memory.communication},
                                    {"peak", memory.peak},
                                    {"disk", memory.disk},
                                    {"moved_bytes", row.moved_bytes},
                                    {"seconds", row.seconds},
                                    {"fits", nullptr}};
    if (plan.limit || plan.disk_free) entry["fits"] = row.fits;
    document["strategies"].push_back(std::move(entry));
  }
  if (settings.fit) {
    nlohmann::ordered_json fit = {{"strategy", nullptr},
                                  {"recomputation", nullptr},
                                  {"layers", nullptr},
                                  {"optimizer_on_disk", nullptr},
                                  {"missing", plan.missing},
                                  {"batch_size", nullptr},
                                  {"num_processes", nullptr},
                                  {"disk", nullptr}};
    if (plan.chosen) {
      fit["strategy"] = to_string(plan.chosen->strategy);
      fit["recomputation"] = recompute_text(plan.chosen->recomputation);
      if (!plan.chosen->layers.empty()) fit["layers"] = plan.chosen->layers;
      fit["optimizer_on_disk"] = plan.chosen->optimizer_on_disk;
    }
    if (plan.smaller_batch) fit["batch_size"] = *plan.smaller_batch;
    if (plan.more_processes) fit["num_processes"] = *plan.more_processes;
    if (plan.on_disk) fit["disk"] = plan.on_disk->node_disk;
    document["fit"] = std::move(fit);
  }
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace accel::train
