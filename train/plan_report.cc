#include "train/plan_report.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "checkpoint_tools/models/memory_estimate.h"
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
  return name;
}

// What `accel train` is told for it, flags and then variables.
std::string words_of(const StrategyRow& row, const PlanSettings& settings) {
  if (row.recomputation == Recomputation::kNone) return std::string(flags_of(row.strategy));
  std::string text = row.strategy == PlannedStrategy::kCopies ? "--fsdp NO_SHARD"
                                                              : std::string(flags_of(row.strategy));
  text +=
      "; FSDP_ACTIVATION_CHECKPOINTING=true FSDP_AUTO_WRAP_POLICY=TRANSFORMER_BASED_WRAP "
      "FSDP_TRANSFORMER_CLS_TO_WRAP=" +
      settings.layer_class;
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

std::string fit_text(const TrainingPlan& plan, const PlanSettings& settings) {
  if (plan.chosen) {
    const std::string words = words_of(*plan.chosen, settings);
    std::string text = "fastest that fits: " + name_of(settings, *plan.chosen);
    if (!words.empty()) text += " (" + words + ")";
    return text + "\n";
  }
  std::string text = "nothing fits: " + bytes_text(plan.missing) + " are missing\n";
  if (plan.smaller_batch)
    text += "it would fit with --batch_size " + std::to_string(*plan.smaller_batch) + "\n";
  if (plan.more_processes)
    text += "it would fit with --num_processes " + std::to_string(*plan.more_processes) + "\n";
  if (!plan.smaller_batch && !plan.more_processes)
    text += "neither smaller batches nor more processes help\n";
  return text;
}

}  // namespace

std::string plan_table(const TrainingPlan& plan, const PlanSettings& settings) {
  std::vector<Cells> rows = {
      {"strategy", "weights", "gradients", "optimizer", "activations", "shared", "peak"}};
  if (plan.limit) rows.front().emplace_back("fits");
  for (const StrategyRow& row : plan.strategies) {
    const PlannedMemory& memory = row.memory;
    rows.push_back({name_of(settings, row),
                    bytes_text(memory.parameters + memory.whole),
                    bytes_text(memory.gradients),
                    bytes_text(memory.optimizer),
                    bytes_text(memory.activations),
                    bytes_text(memory.communication),
                    bytes_text(memory.peak)});
    if (plan.limit) rows.back().emplace_back(row.fits ? "yes" : "no");
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
                                     {"strategies", nlohmann::ordered_json::array()}};
  if (plan.limit) document["memory"] = *plan.limit;
  for (const StrategyRow& row : plan.strategies) {
    const PlannedMemory& memory = row.memory;
    nlohmann::ordered_json entry = {{"strategy", to_string(row.strategy)},
                                    {"recomputation", recompute_text(row.recomputation)},
                                    {"extra_flops", row.extra_flops},
                                    {"parameters", memory.parameters},
                                    {"whole", memory.whole},
                                    {"gradients", memory.gradients},
                                    {"optimizer", memory.optimizer},
                                    {"activations", memory.activations},
                                    {"communication", memory.communication},
                                    {"peak", memory.peak},
                                    {"moved_bytes", row.moved_bytes},
                                    {"fits", nullptr}};
    if (plan.limit) entry["fits"] = row.fits;
    document["strategies"].push_back(std::move(entry));
  }
  if (settings.fit) {
    nlohmann::ordered_json fit = {{"strategy", nullptr},
                                  {"recomputation", nullptr},
                                  {"missing", plan.missing},
                                  {"batch_size", nullptr},
                                  {"num_processes", nullptr}};
    if (plan.chosen) {
      fit["strategy"] = to_string(plan.chosen->strategy);
      fit["recomputation"] = recompute_text(plan.chosen->recomputation);
    }
    if (plan.smaller_batch) fit["batch_size"] = *plan.smaller_batch;
    if (plan.more_processes) fit["num_processes"] = *plan.more_processes;
    document["fit"] = std::move(fit);
  }
  return document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace accel::train
