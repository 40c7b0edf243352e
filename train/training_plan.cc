#include "train/training_plan.h"

#include <algorithm>
#include <optional>
#include <string>
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

  [[nodiscard]] StepPlan step(std::int64_t batch_size, Recomputation recomputation) {
    units_.reset();
    if (recomputation != Recomputation::kNone) {
      ActivationCheckpointOptions options;
      if (recomputation == Recomputation::kSelective)
        options.keep = KeptOperators::compute_intensive();
      units_.emplace(*net_, std::vector<std::string>{settings_.layer_class}, options);
    }
    return {*net_, optimizer_.get(), [this, batch_size] {
              for (int i = 0; i < settings_.gradient_accumulation_steps; ++i) run_batch(batch_size);
            }};
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

std::vector<StrategyRow> rows_of(const PlannedSteps& steps,
                                 int num_processes,
                                 const PlanSettings& settings,
                                 std::optional<std::int64_t> limit) {
  std::vector<PlannedStrategy> strategies = {PlannedStrategy::kCopies};
  if (num_processes > 1) {
    strategies.insert(strategies.end(),
                      {PlannedStrategy::kZero1, PlannedStrategy::kZero2, PlannedStrategy::kZero3});
  }
  const double flops = steps.all.front().second.flops();
  std::vector<StrategyRow> rows;
  for (const auto& [recomputation, step] : steps.all) {
    for (const PlannedStrategy strategy : strategies) {
      if (recomputation != Recomputation::kNone && !can_recompute(strategy)) continue;
      const PlannedRun run{.num_processes = num_processes,
                           .num_machines = settings.num_machines,
                           .strategy = strategy};
      const PlannedMemory memory = step.memory(run);
      rows.push_back({strategy,
                      recomputation,
                      (step.flops() - flops) / settings.gradient_accumulation_steps,
                      memory,
                      step.moved_bytes(run),
                      !limit || memory.peak <= *limit});
    }
  }
  return rows;
}

// nullptr: none fits. Of equally fast ones the first.
const StrategyRow* fastest(const std::vector<StrategyRow>& rows) {
  const auto cost = [](const StrategyRow& row) {
    return std::pair(row.recomputation, row.moved_bytes);
  };
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : rows)
    if (row.fits && (best == nullptr || cost(row) < cost(*best))) best = &row;
  return best;
}

void find_changes(PlannedTraining& training, const PlanSettings& settings, TrainingPlan& plan) {
  const auto fits = [&](std::int64_t batch_size) {
    try {
      return fastest(rows_of(PlannedSteps(training, settings, batch_size),
                             settings.num_processes,
                             settings,
                             plan.limit)) != nullptr;
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
  if (low > 0) plan.smaller_batch = low;
  const PlannedSteps steps(training, settings, settings.batch_size);
  for (int count = settings.num_processes * 2; count <= kMostProcesses; count *= 2) {
    if (fastest(rows_of(steps, count, settings, plan.limit)) == nullptr) continue;
    plan.more_processes = count;
    return;
  }
}

}  // namespace

TrainingPlan plan_training(const PlanSettings& settings) {
  TrainingPlan plan;
  if (!settings.memory.empty()) plan.limit = convert_file_size_to_int(settings.memory);
  PlannedTraining training(settings);
  const PlannedSteps steps(training, settings, settings.batch_size);
  const StepPlan& step = steps.all.front().second;
  plan.num_parameters = step.num_parameters();
  plan.flops = step.flops() / settings.gradient_accumulation_steps;
  plan.strategies = rows_of(steps, settings.num_processes, settings, plan.limit);
  if (!settings.fit) return plan;
  if (const StrategyRow* const row = fastest(plan.strategies)) {
    plan.chosen = *row;
    return plan;
  }
  const auto least = std::ranges::min_element(
      plan.strategies, {}, [](const StrategyRow& row) { return row.memory.peak; });
  plan.missing = least->memory.peak - *plan.limit;
  find_changes(training, settings, plan);
  return plan;
}

}  // namespace accel::train
