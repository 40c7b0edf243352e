#include "train/training_run.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <accel/accelerator.h>
#include <accel/dataloader.h>
#include <accel/exported_model.h>
#include <accel/random.h>
#include <accel/schedulers.h>

#include "train/metric_file.h"
#include "train/model_call.h"
#include "train/named_optimizer.h"
#include "train/samples.h"

namespace accel::train {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
const std::vector<std::string> kColumns = {
    "step", "epoch", "loss", "lr", "samples_per_second", "grad_norm", "eval_loss", "eval_accuracy"};
using Loader = DataLoader<torch::data::Example<>>;

AcceleratorOptions accelerator_options(const TrainSettings& settings) {
  AcceleratorOptions options{
      .mixed_precision = settings.mixed_precision,
      .gradient_accumulation_steps = settings.gradient_accumulation_steps,
      .project_config = {.project_dir = settings.project_dir,
                         .automatic_checkpoint_naming = true,
                         .total_limit = settings.total_limit,
                         .memory_checkpoint_every = settings.memory_checkpoint_every},
      .on_preemption = OnPreemption::kSaveAndExit};
  if (settings.fsdp) {
    options.fsdp_plugin.emplace().sharding_strategy = parse<ShardingStrategy>(*settings.fsdp);
  }
  return options;
}

LrFactor lr_factor(const TrainSettings& settings, std::int64_t num_steps) {
  if (settings.schedule == "constant") return constant_with_warmup(settings.warmup_steps);
  if (settings.schedule == "cosine") {
    return cosine_with_warmup(
        {.num_warmup_steps = settings.warmup_steps, .num_training_steps = num_steps});
  }
  return linear_with_warmup(
      {.num_warmup_steps = settings.warmup_steps, .num_training_steps = num_steps});
}

// Optimizer steps of all epochs; saved with everything else.
struct StepCount : Stateful {
  std::int64_t value = 0;
  StateDict state_dict() const override { return {{}, {{"steps", value}}}; }
  void load_state_dict(const StateDict& state) override {
    value = std::get<std::int64_t>(state.values.at("steps"));
  }
};

class Run {
 public:
  explicit Run(const TrainSettings& settings)
      : settings_(settings),
        accelerator_(accelerator_options(settings)),
        net_(settings.model, {.weights = settings.weights}),
        call_(net_->input_names(), settings.task == "causal-lm"),
        model_(accelerator_.prepare(net_)),
        optimizer_(accelerator_.prepare(
            named_optimizer(settings.optimizer, settings.lr, settings.weight_decay, *net_))),
        loader_(accelerator_.prepare(
            samples_of(settings.training_files(), settings.labels, !settings.keeps_order))) {
    if (!settings.evaluation_files().empty())
      eval_loader_ = accelerator_.prepare(
          samples_of(settings.evaluation_files(), settings.eval_labels, /*is_shuffled=*/false));
    // prepare() steps it once for each process: the steps of the schedule are those of all of them.
    const std::int64_t ranks = accelerator_.num_processes();
    scheduler_ = accelerator_.prepare(
        std::make_shared<LambdaLR>(optimizer_.optimizer(),
                                   [factor = lr_factor(settings, num_steps()),
                                    ranks](std::int64_t step) { return factor(step / ranks); }));
    accelerator_.register_for_checkpointing(steps_);
  }

  void train() {
    begin();
    while (loader_.epoch() < settings_.num_epochs && !is_done()) train_epoch();
    accelerator_.save_state();
    const fs::path folder = fs::path(settings_.project_dir) / "model";
    accelerator_.save_model(model_, folder);
    accelerator_.print("the model is in", folder.string());
    accelerator_.end_training();
  }

 private:
  Loader samples_of(const std::vector<std::string>& files,
                    const std::vector<std::string>& labels,
                    bool is_shuffled) {
    return Loader(Samples(settings_,
                          files,
                          labels,
                          sample_shape(net_, call_.sample_input()),
                          net_->index_limit(call_.sample_input())),
                  {.batch_size = settings_.batch_size,
                   .shuffle = is_shuffled,
                   .num_workers = settings_.num_workers});
  }

  [[nodiscard]] std::int64_t num_steps() const {
    const std::int64_t batches = static_cast<std::int64_t>(*loader_.size());
    const std::int64_t steps = settings_.gradient_accumulation_steps;
    const std::int64_t all = (batches + steps - 1) / steps * settings_.num_epochs;
    return settings_.max_steps < 0 ? all : std::min(all, settings_.max_steps);
  }

  [[nodiscard]] bool is_done() const {
    return settings_.max_steps >= 0 && steps_.value >= settings_.max_steps;
  }

  void begin() {
    set_seed(settings_.seed);
    const RunStart start = settings_.resume      ? RunStart::kResume
                           : settings_.overwrite ? RunStart::kAnew
                                                 : RunStart::kFirst;
    const auto checkpoint = begin_run(start);
    if (checkpoint) {
      const std::string folder = checkpoint->folder.string();
      accelerator_.print(
          "going on from", folder.empty() ? "memory" : folder, "at step", steps_.value);
    }
    if (!accelerator_.is_main_process()) return;
    const fs::path path = settings_.metrics_file.empty()
                              ? fs::path(settings_.project_dir) / "metrics.jsonl"
                              : fs::path(settings_.metrics_file);
    metrics_.emplace(path, kColumns, /*appends=*/checkpoint.has_value());
  }

  std::optional<CheckpointInfo> begin_run(RunStart start) {
    try {
      return accelerator_.begin_run(start);
    } catch (const Error& error) {
      if (start != RunStart::kFirst || error.code() != ErrorCode::kInvalidArgument) throw;
      throw Error(error.code(),
                  error.message(),
                  "go on with that run by --resume, delete its checkpoints by --overwrite, or give "
                  "another --project_dir");
    }
  }

  void train_epoch() {
    model_->train();
    const std::int64_t epoch = loader_.epoch();
    for (auto& batch : loader_) {
      const auto accumulating = accelerator_.accumulate(model_);
      const ModelCall::Answer answer = forward(batch.data, batch.target);
      accelerator_.backward(answer.loss);
      add_loss(answer.loss);
      if (accelerator_.sync_gradients() && settings_.max_grad_norm > 0)
        norm_ = accelerator_.clip_grad_norm_(model_->parameters(), settings_.max_grad_norm);
      optimizer_.step();
      scheduler_->step();
      optimizer_.zero_grad();
      if (!accelerator_.sync_gradients()) continue;  // gradients of half a step are not saved
      ++steps_.value;
      if (steps_.value % settings_.log_steps == 0) log(epoch);
      if (settings_.eval_steps > 0 && steps_.value % settings_.eval_steps == 0) evaluate(epoch);
      if (steps_.value % settings_.save_steps == 0) accelerator_.save_state();
      if (is_done()) break;
    }
    if (num_losses_ > 0) log(epoch);
    if (settings_.eval_steps == 0) evaluate(epoch);
  }

  ModelCall::Answer forward(const at::Tensor& data, const at::Tensor& target) {
    const ExportedOutputs outputs = model_(call_.inputs(data, target));
    const auto autocast = accelerator_.autocast();
    return call_.answer(outputs, target);
  }

  void add_loss(const at::Tensor& loss) {
    const at::Tensor value = loss.detach().to(at::kFloat);
    losses_ = losses_.defined() ? losses_ + value : value;
    ++num_losses_;
  }

  // The mean since the last time, over all ranks.
  void log(std::int64_t epoch) {
    const at::Tensor mean = accelerator_.reduce(losses_ / num_losses_, Reduction::kMean);
    const std::int64_t samples = num_losses_ * settings_.batch_size * accelerator_.num_processes();
    losses_ = at::Tensor();
    num_losses_ = 0;
    const Clock::time_point now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - std::exchange(logged_, now)).count();
    MetricRow row = {{"step", steps_.value},
                     {"epoch", epoch},
                     {"loss", mean.item<double>()},
                     {"lr", scheduler_->get_last_lr().front()},
                     {"samples_per_second", static_cast<double>(samples) / seconds}};
    if (norm_.defined()) row.emplace_back("grad_norm", norm_.item<double>());
    write(row);
  }

  // How many rows of this batch no other one has: the last batches of a pass are filled up with the first samples.
  [[nodiscard]] std::int64_t num_own_rows(std::int64_t rows) const {
    const GradientState& state = accelerator_.gradient_state();
    if (!state.end_of_dataloader() || state.remainder() <= 0) return rows;
    const std::int64_t before = accelerator_.process_index() * settings_.batch_size;
    return std::clamp<std::int64_t>(state.remainder() - before, 0, rows);
  }

  // Every sample counts once. A rank with no row of its own takes part all the same: shards need all ranks.
  void evaluate(std::int64_t epoch) {
    if (!eval_loader_) return;
    const at::NoGradGuard no_grad;
    model_->eval();
    at::Tensor sums = at::zeros({3}, at::kDouble);  // losses, samples, samples with the right class
    const bool is_classification = settings_.task == "classification";
    for (auto& batch : *eval_loader_) {
      const std::int64_t rows = num_own_rows(batch.data.size(0));
      const std::int64_t taken = std::max<std::int64_t>(rows, 1);
      const at::Tensor target = batch.target.slice(0, 0, taken);
      const ModelCall::Answer answer = forward(batch.data.slice(0, 0, taken), target);
      sums[0] += answer.loss.to(at::kDouble).cpu() * rows;
      sums[1] += rows;
      if (is_classification && answer.logits.defined() && rows > 0)
        sums[2] += (answer.logits.argmax(-1) == target).sum().cpu();
    }
    model_->train();
    sums = accelerator_.reduce(sums.to(accelerator_.device()), Reduction::kSum).cpu();
    logged_ = Clock::now();
    MetricRow row = {{"step", steps_.value},
                     {"epoch", epoch},
                     {"eval_loss", (sums[0] / sums[1]).item<double>()}};
    if (is_classification) row.emplace_back("eval_accuracy", (sums[2] / sums[1]).item<double>());
    write(row);
  }

  void write(const MetricRow& row) {
    if (!metrics_) return;
    metrics_->write(row);
    std::string line;
    for (const auto& [name, value] : row) {
      const auto* const whole = std::get_if<std::int64_t>(&value);
      line += (line.empty() ? "" : "  ") + name + " " +
              (whole != nullptr ? std::to_string(*whole) : metric_text(std::get<double>(value)));
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const TrainSettings& settings_;
  Accelerator accelerator_;
  ExportedModel net_;
  ModelCall call_;
  Prepared<ExportedModel> model_;
  AcceleratedOptimizer optimizer_;
  Loader loader_;
  std::optional<Loader> eval_loader_;
  std::optional<AcceleratedScheduler> scheduler_;
  StepCount steps_;
  std::optional<MetricFile> metrics_;  // of the main process
  at::Tensor losses_;                  // since the last row
  std::int64_t num_losses_ = 0;
  at::Tensor norm_;
  Clock::time_point logged_ = Clock::now();
};

}  // namespace

void run_training(const TrainSettings& settings) {
  Run(settings).train();
}

}  // namespace accel::train
