// TrainingPlan: what `accel train` would take with these settings, for each way to divide the model, without training.
//
//   time  of a step, by what this machine computes and moves in a second; its processes share it
//   fit   of the strategies that fit the one with the shortest step; where none does, what is missing and the smallest changes that
//         help: the largest smaller batch, the fewest more processes, the optimizer on a disk
//
// Threads:  the thread that calls.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accel/plan.h>

#include "train/plan_settings.h"

namespace accel::train {

// Which activations of layers of PlanSettings::layer_class are computed again.
enum class Recomputation { kNone, kSelective, kFull };

struct StrategyRow {
  PlannedStrategy strategy = PlannedStrategy::kCopies;
  Recomputation recomputation = Recomputation::kNone;
  std::vector<std::string>
      layers;  // that compute again, by their paths; empty: all of the class, or none
  bool optimizer_on_disk = false;
  double extra_flops = 0;  // of recomputation, for one batch
  PlannedMemory memory;
  std::int64_t moved_bytes = 0;
  double seconds = 0;
  std::int64_t node_disk = 0;  // bytes of all processes of a machine
  bool fits = true;            // into the memory, and on the disk
};

struct TrainingPlan {
  std::int64_t num_parameters = 0;
  double flops = 0;                       // of one batch of one process
  MachineRates rates;                     // of this machine's processes together
  std::optional<std::int64_t> limit;      // bytes of one process
  std::optional<std::int64_t> disk_free;  // bytes of PlanSettings::optimizer_folder
  // Those that recompute behind those that do not, and those with the optimizer on disk behind them.
  std::vector<StrategyRow> strategies;

  // With PlanSettings::fit.
  std::optional<StrategyRow>
      chosen;  // std::nullopt: none fits; of layers that compute all again, as few as fit
  // Where none fits: the one that takes the least memory of those that the disk has room for, and what it lacks.
  std::optional<StrategyRow> least;
  std::int64_t missing = 0;
  std::optional<std::int64_t> smaller_batch;
  std::optional<int> more_processes;
  // That fits where a disk has room for it: without optimizer_folder, or with more room there.
  std::optional<StrategyRow> on_disk;
};

// Reads no weights. Throws what ExportedModel and StepPlan throw; kInvalidArgument for a limit or a rate that is no number of bytes, and for
// machines that do not divide the processes; kFileIo for a folder whose disk does not tell its room.
[[nodiscard]] TrainingPlan plan_training(const PlanSettings& settings);

}  // namespace accel::train
