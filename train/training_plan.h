// TrainingPlan: what `accel train` would take with these settings, for each way to divide the model, without training.
//
//   fit   of the strategies that fit the one that computes the least again, and of these the one that moves the fewest bytes; where
//         none does, what is missing and the smallest change that helps: the largest smaller batch, or the fewest more processes
//
// Threads:  the thread that calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <accel/plan.h>

#include "train/plan_settings.h"

namespace accel::train {

// Which activations of layers of PlanSettings::layer_class are computed again.
enum class Recomputation { kNone, kSelective, kFull };

struct StrategyRow {
  PlannedStrategy strategy = PlannedStrategy::kCopies;
  Recomputation recomputation = Recomputation::kNone;
  double extra_flops = 0;  // of recomputation, for one batch
  PlannedMemory memory;
  std::int64_t moved_bytes = 0;
  bool fits = true;
};

struct TrainingPlan {
  std::int64_t num_parameters = 0;
  double flops = 0;                     // of one batch of one process
  std::optional<std::int64_t> limit;    // bytes of one process
  std::vector<StrategyRow> strategies;  // those that recompute behind those that do not

  // With PlanSettings::fit.
  std::optional<StrategyRow> chosen;  // std::nullopt: none fits
  std::int64_t missing = 0;           // bytes, for the one that misses the fewest
  std::optional<std::int64_t> smaller_batch;
  std::optional<int> more_processes;
};

// Reads no weights. Throws what ExportedModel and StepPlan throw; kInvalidArgument for a limit that is no number of bytes, and
// for machines that do not divide the processes.
[[nodiscard]] TrainingPlan plan_training(const PlanSettings& settings);

}  // namespace accel::train
