#include "train/training_plan.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/ops/zeros.h>

#include <accel/activation_checkpoint.h>
#include <accel/big_model.h>
#include <accel/device_map.h>
#include <accel/error.h>
#include <accel/exported_model.h>
#include <accel/precision.h>
#include <accel/recomputed_units.h>

#include "runtime/printable.h"
#include "train/model_call.h"
#include "train/named_optimizer.h"

namespace accel::train {
namespace {

constexpr std::int64_t kSequenceLength = 128;
constexpr int kMostProcesses = 4096;

ExportedModel without_memory(const PlanSettings& settings) {
  const auto empty = init_empty_weights({.include_buffers = true});
  return ExportedModel(settings.model);
}

// The model and its optimizer, to plan batches of several sizes.
class PlannedTraining {
 public:
  explicit PlannedTraining(const PlanSettings& settings)
      : settings_(settings),
        net_(without_memory(settings)),
        call_(net_->input_names(), settings.task == "causal-lm"),
        optimizer_(named_optimizer(settings.optimizer, 1e-4, 0.01, *net_)),
        sample_(shape_of_sample()) {
    net_->train();
  }

  // Of the step with as few layers computed again as fit. Requires: it fits with all of them.
  struct FewestLayers {
    StepPlan step;
    std::vector<std::string> layers;
  };
  [[nodiscard]] FewestLayers fewest_layers(const PlannedRun& run, std::int64_t max_bytes) {
    units_.emplace(*net_, std::vector<std::string>{settings_.layer_class});
    const std::function<void()> step = [this] { run_step(settings_.batch_size); };
    const auto fitted =
        fit_recomputed_units(*units_, *net_, optimizer_.get(), step, max_bytes, run);
    FewestLayers fewest{{*net_, optimizer_.get(), step}, {}};
    for (std::size_t i = 0; fitted && i < units_->num_units(); ++i)
      if (fitted->is_recomputed[i]) fewest.layers.push_back(units_->names()[i]);
    if (fewest.layers.size() == units_->num_units()) fewest.layers.clear();
    return fewest;
  }

  [[nodiscard]] StepPlan step(std::int64_t batch_size, Recomputation recomputation) {
    units_.reset();
    if (recomputation != Recomputation::kNone) {
      ActivationCheckpointOptions options;
      if (recomputation == Recomputation::kSelective)
        options.keep = KeptOperators::compute_intensive();
      units_.emplace(*net_, std::vector<std::string>{settings_.layer_class}, options);
    }
    return {*net_, optimizer_.get(), [this, batch_size] { run_step(batch_size); }};
  }

 private:
  [[nodiscard]] std::vector<std::int64_t> shape_of_sample() const {
    const std::string& input = call_.sample_input();
    std::vector<std::int64_t> shape = sample_shape(net_, input);
    if (settings_.task == "causal-lm") {
      const bool is_fixed = !shape.empty() && shape.front() > 0;
      return {settings_.sequence_length.value_or(is_fixed ? shape.front() : kSequenceLength)};
    }
    if (std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; })) {
      throw Error(ErrorCode::kUnsupported,
                  "the input " + printable(input) +
                      " takes samples of any shape, and how much memory they need depends on it",
                  "export the model with the shape of your samples, and the batch alone dynamic");
    }
    return shape;
  }

  void run_step(std::int64_t batch_size) {
    for (int i = 0; i < settings_.gradient_accumulation_steps; ++i) run_batch(batch_size);
  }

  // As training_run.cc does it: batch, loss and logits are there until the next batch.
  void run_batch(std::int64_t batch_size) {
    answer_ = {};
    const bool is_causal = settings_.task == "causal-lm";
    std::vector<std::int64_t> sizes = sample_;
    sizes.insert(sizes.begin(), batch_size);
    data_ = at::zeros(sizes, is_causal ? at::kLong : at::kFloat);
    target_ = is_causal ? data_ : at::zeros({batch_size}, at::kLong);
    const Autocast autocast(
        {.dtype = settings_.mixed_precision == "fp16" ? at::kHalf : at::kBFloat16,
         .enabled = settings_.mixed_precision != "no"});
    ExportedOutputs outputs = forward();
    for (at::Tensor& output : outputs.tensors)
      if (output.defined() && c10::isReducedFloatingType(output.scalar_type()))
        output = output.to(at::kFloat);
    answer_ = call_.answer(outputs, target_);
    outputs = {};
    answer_.loss.backward();
  }

  [[nodiscard]] ExportedOutputs forward() {
    std::optional<RecomputedUnits::Forward> recomputed;
    if (units_) recomputed.emplace(units_->forward());
    return net_->forward(call_.inputs(data_, target_));
  }

  const PlanSettings& settings_;
  ExportedModel net_;
  ModelCall call_;
  std::shared_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<std::int64_t> sample_;
  std::optional<RecomputedUnits> units_;
  at::Tensor data_;
  at::Tensor target_;
  ModelCall::Answer answer_;
};

// The step of a batch, for each way to treat activations.
struct PlannedSteps {
  PlannedSteps(PlannedTraining& training, const PlanSettings& settings, std::int64_t batch_size) {
    std::vector<Recomputation> ways = {Recomputation::kNone};
    if (!settings.layer_class.empty())
      ways.insert(ways.end(), {Recomputation::kSelective, Recomputation::kFull});
    for (const Recomputation way : ways) all.emplace_back(way, training.step(batch_size, way));
  }
  std::vector<std::pair<Recomputation, StepPlan>> all;
};

// DeepSpeed's ZeRO-1 computes nothing again.
bool can_recompute(PlannedStrategy strategy) {
  return strategy != PlannedStrategy::kZero1;
}

// What a process and its disk may take, and how fast the machine is.
struct Room {
  MachineRates rates;  // of all its processes together
  std::optional<std::int64_t> memory;
  std::optional<std::int64_t> disk;  // of a machine

  [[nodiscard]] bool has_disk_for(const StrategyRow& row) const {
    return !row.optimizer_on_disk || (disk && row.node_disk <= *disk);
  }
  [[nodiscard]] bool has_memory_for(const StrategyRow& row) const {
    return !memory || row.memory.peak <= *memory;
  }
};

std::vector<PlannedStrategy> strategies_of(int num_processes) {
  if (num_processes == 1) return {PlannedStrategy::kCopies};
  return {PlannedStrategy::kCopies,
          PlannedStrategy::kZero1,
          PlannedStrategy::kZero2,
          PlannedStrategy::kZero3};
}

MachineRates rates_of_process(const MachineRates& rates, int num_processes) {
  const double share = 1.0 / num_processes;
  return {.flops = rates.flops * share,
          .memory_bytes = rates.memory_bytes * share,
          .network_bytes = rates.network_bytes * share,
          .disk_bytes = rates.disk_bytes * share};
}

StrategyRow row_of(const StepPlan& step,
                   Recomputation recomputation,
                   const PlannedRun& run,
                   const Room& room) {
  StrategyRow row{.strategy = run.strategy,
                  .recomputation = recomputation,
                  .optimizer_on_disk = run.optimizer_on_disk,
                  .memory = step.memory(run),
                  .moved_bytes = step.moved_bytes(run)};
  const int of_machine = run.num_processes / run.num_machines;
  row.seconds = step.seconds(rates_of_process(room.rates, of_machine), run);
  row.node_disk = row.memory.disk * of_machine;
  row.fits = room.has_memory_for(row) && room.has_disk_for(row);
  return row;
}

// By flags the optimizer is on disk with DeepSpeed alone, which computes nothing again.
std::vector<StrategyRow> rows_on_disk(const PlannedSteps& steps,
                                      int num_processes,
                                      const PlanSettings& settings,
                                      const Room& room) {
  std::vector<StrategyRow> rows;
  for (const PlannedStrategy strategy : strategies_of(num_processes)) {
    const PlannedRun run{.num_processes = num_processes,
                         .num_machines = settings.num_machines,
                         .strategy = strategy,
                         .optimizer_on_disk = true};
    StrategyRow row = row_of(steps.all.front().second, Recomputation::kNone, run, room);
    if (row.memory.disk > 0) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<StrategyRow> rows_of(const PlannedSteps& steps,
                                 int num_processes,
                                 const PlanSettings& settings,
                                 const Room& room) {
  const double flops = steps.all.front().second.flops();
  std::vector<StrategyRow> rows;
  for (const auto& [recomputation, step] : steps.all) {
    for (const PlannedStrategy strategy : strategies_of(num_processes)) {
      if (recomputation != Recomputation::kNone && !can_recompute(strategy)) continue;
      const PlannedRun run{.num_processes = num_processes,
                           .num_machines = settings.num_machines,
                           .strategy = strategy};
      rows.push_back(row_of(step, recomputation, run, room));
      rows.back().extra_flops = (step.flops() - flops) / settings.gradient_accumulation_steps;
    }
  }
  if (settings.optimizer_folder.empty()) return rows;
  const auto on_disk = rows_on_disk(steps, num_processes, settings, room);
  rows.insert(rows.end(), on_disk.begin(), on_disk.end());
  return rows;
}

// nullptr: none fits. Of equally fast ones the first.
const StrategyRow* fastest(const std::vector<StrategyRow>& rows) {
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : rows)
    if (row.fits && (best == nullptr || row.seconds < best->seconds)) best = &row;
  return best;
}

// The largest that fits.
std::optional<std::int64_t> smaller_batch(PlannedTraining& training,
                                          const PlanSettings& settings,
                                          const Room& room) {
  const auto fits = [&](std::int64_t batch_size) {
    try {
      const PlannedSteps steps(training, settings, batch_size);
      return fastest(rows_of(steps, settings.num_processes, settings, room)) != nullptr;
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      return false;  // the model takes no batch as small as that
    }
  };
  std::int64_t low = 0;  // fits, unless it is 0
  std::int64_t high = settings.batch_size;
  while (high - low > 1) {
    const std::int64_t middle = low + (high - low) / 2;
    (fits(middle) ? low : high) = middle;
  }
  return low > 0 ? std::optional(low) : std::nullopt;
}

void find_changes(PlannedTraining& training,
                  const PlannedSteps& steps,
                  const PlanSettings& settings,
                  const Room& room,
                  TrainingPlan& plan) {
  plan.smaller_batch = smaller_batch(training, settings, room);
  for (int count = settings.num_processes * 2; count <= kMostProcesses; count *= 2) {
    if (fastest(rows_of(steps, count, settings, room)) == nullptr) continue;
    plan.more_processes = count;
    break;
  }
  const Room any_disk{
      .rates = room.rates, .memory = room.memory, .disk = std::numeric_limits<std::int64_t>::max()};
  const auto on_disk = rows_on_disk(steps, settings.num_processes, settings, any_disk);
  if (const StrategyRow* const row = fastest(on_disk)) plan.on_disk = *row;
}

// A row that computes all of its layers again, with as few as fit. Over several machines layers are units that are fetched: all stay.
StrategyRow with_fewest_layers(PlannedTraining& training,
                               const PlanSettings& settings,
                               const Room& room,
                               double flops,
                               const StrategyRow& row) {
  if (row.recomputation != Recomputation::kFull || settings.num_machines > 1) return row;
  const PlannedRun run{.num_processes = settings.num_processes, .strategy = row.strategy};
  auto fewest = training.fewest_layers(run, *room.memory);
  if (fewest.layers.empty()) return row;
  StrategyRow better = row_of(fewest.step, row.recomputation, run, room);
  better.extra_flops = (fewest.step.flops() - flops) / settings.gradient_accumulation_steps;
  better.layers = std::move(fewest.layers);
  return better;
}

std::int64_t free_bytes(const std::string& folder) {
  std::error_code error;
  const auto space = std::filesystem::space(folder, error);
  if (!error) {
    constexpr auto kMost = std::numeric_limits<std::int64_t>::max();
    return static_cast<std::int64_t>(std::min<std::uintmax_t>(space.available, kMost));
  }
  throw Error(ErrorCode::kFileIo,
              "the disk of " + printable(folder) + " does not tell its room: " + error.message(),
              "give --offload_optimizer_nvme_path another folder");
}

}  // namespace

TrainingPlan plan_training(const PlanSettings& settings) {
  TrainingPlan plan;
  if (!settings.memory.empty()) plan.limit = convert_file_size_to_int(settings.memory);
  if (!settings.optimizer_folder.empty()) plan.disk_free = free_bytes(settings.optimizer_folder);
  plan.rates = measure_machine_rates();
  plan.rates.network_bytes = static_cast<double>(convert_file_size_to_int(settings.network_rate));
  plan.rates.disk_bytes = static_cast<double>(convert_file_size_to_int(settings.disk_rate));
  const Room room{.rates = plan.rates, .memory = plan.limit, .disk = plan.disk_free};
  PlannedTraining training(settings);
  const PlannedSteps steps(training, settings, settings.batch_size);
  const StepPlan& step = steps.all.front().second;
  plan.num_parameters = step.num_parameters();
  plan.flops = step.flops() / settings.gradient_accumulation_steps;
  plan.strategies = rows_of(steps, settings.num_processes, settings, room);
  if (!settings.fit) return plan;
  if (const StrategyRow* const row = fastest(plan.strategies)) {
    plan.chosen = with_fewest_layers(training, settings, room, step.flops(), *row);
    return plan;
  }
  for (const StrategyRow& row : plan.strategies) {
    if (room.has_disk_for(row) && (!plan.least || row.memory.peak < plan.least->memory.peak))
      plan.least = row;
  }
  plan.missing = plan.least->memory.peak - *plan.limit;
  find_changes(training, steps, settings, room, plan);
  return plan;
}

}  // namespace accel::train
