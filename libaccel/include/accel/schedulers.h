// Schedulers: learning rates as a function of the number of steps.
//
// A scheduler belongs to one torch::optim::Optimizer and writes the lr of its parameter groups.
// Group g starts from base lr g, its lr at the construction of the scheduler. The constructor sets
// the rate of step 0; each step() advances by one. Schedulers ignore accumulation and ranks:
// AcceleratedScheduler (accel/optim.h) decides when to step them.
//
// Threads:  the thread that trains.
// Source:   torch.optim.lr_scheduler and the schedules of HF transformers; numbers compared with
//           Python in tests/peer/train_peer.py.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include <accel/export.h>
#include <accel/state_dict.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

// The interface that Accelerator::prepare() needs. Derive your own schedule from LRScheduler, or from
// this class if it has no optimizer.
class ACCEL_EXPORT Scheduler : public Stateful {
 public:
  virtual void step() = 0;
  // For schedulers that follow a measured value; the others ignore it.
  virtual void step(double /*metric*/) { step(); }
  // Counts a step without moving (GradientAccumulationPlugin::adjust_scheduler).
  virtual void count_step() {}
  // true: a step means a batch, and N processes read N batches at a time; false: a step means a metric.
  [[nodiscard]] virtual bool counts_batches() const { return true; }
  // False if the schedule has reached its last step.
  [[nodiscard]] virtual bool may_step() const { return true; }
  // The last rates, one per parameter group; empty if there are none.
  [[nodiscard]] virtual std::vector<double> get_last_lr() const { return {}; }
  // The optimizer whose rates it writes, or nullptr.
  [[nodiscard]] virtual torch::optim::Optimizer* optimizer() const { return nullptr; }
  // Follows an optimizer that was moved to another address; its groups stay the same.
  virtual void rebind(torch::optim::Optimizer& /*optimizer*/) {}
};

// The state has the names of the Python class: base_lrs, last_epoch, _step_count, _last_lr.
class ACCEL_EXPORT LRScheduler : public Scheduler {
 public:
  using Scheduler::step;
  // Computes and sets the rates of the next step.
  void step() override;

  void count_step() override { ++step_count_; }
  [[nodiscard]] std::vector<double> get_last_lr() const override { return last_lrs_; }
  [[nodiscard]] torch::optim::Optimizer* optimizer() const override { return optimizer_; }
  void rebind(torch::optim::Optimizer& optimizer) override { optimizer_ = &optimizer; }

  [[nodiscard]] const std::vector<double>& base_lrs() const noexcept { return base_lrs_; }
  [[nodiscard]] std::int64_t last_epoch() const noexcept { return last_epoch_; }
  // Calls of step(), including the one of the constructor.
  [[nodiscard]] std::int64_t step_count() const noexcept { return step_count_; }

  [[nodiscard]] StateDict state_dict() const override;
  // Also sets the loaded rates in the optimizer. Throws kCheckpointMismatch if the number of groups
  // differs.
  void load_state_dict(const StateDict& state) override;

 protected:
  // The optimizer must outlive the scheduler (or be followed with rebind()).
  explicit LRScheduler(torch::optim::Optimizer& optimizer);

  // The rate of each group at last_epoch(). current: the present rates.
  [[nodiscard]] virtual std::vector<double> rates(const std::vector<double>& current) = 0;

  // Does the step of the constructor; the most derived class calls it last in its own.
  void start() { LRScheduler::step(); }
  void set_base_lrs(std::vector<double> rates) { base_lrs_ = std::move(rates); }
  // Writes the rates into the groups.
  void set_rates(std::vector<double> rates);
  [[nodiscard]] std::vector<double> current_rates() const;

 private:
  torch::optim::Optimizer* optimizer_;
  std::vector<double> base_lrs_;
  std::vector<double> last_lrs_;
  std::int64_t last_epoch_ = -1;
  std::int64_t step_count_ = 0;
};

// The factor of the base lr for a step; the first step is 0.
using LrFactor = std::function<double(std::int64_t step)>;

// rate = base lr * factor(step).
class ACCEL_EXPORT LambdaLR final : public LRScheduler {
 public:
  LambdaLR(torch::optim::Optimizer& optimizer, LrFactor factor);
  // One factor per group; kInvalidArgument if the numbers differ.
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<LrFactor> factors);

 private:
  std::vector<double> rates(const std::vector<double>& current) override;
  std::vector<LrFactor> factors_;
};

// The rate is multiplied by gamma every step_size steps.
class ACCEL_EXPORT StepLR final : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, std::int64_t step_size, double gamma = 0.1);

 private:
  std::vector<double> rates(const std::vector<double>& current) override;
  std::int64_t step_size_;
  double gamma_;
};

// The rate falls on half a cosine wave from the base lr to eta_min in t_max steps, and rises again when stepped further
// (arXiv:1608.03983, without restarts). Throws kInvalidArgument unless t_max >= 1 and eta_min is finite.
class ACCEL_EXPORT CosineAnnealingLR final : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, std::int64_t t_max, double eta_min = 0.0);

 private:
  std::vector<double> rates(const std::vector<double>& current) override;
  std::int64_t t_max_;
  double eta_min_;
};

struct DeepSpeedWarmupOptions {
  double warmup_min_lr = 0.0;
  double warmup_max_lr = 0.001;
  std::int64_t warmup_num_steps = 1000;  // at least 2 are taken
  bool linear = false;                   // false: logarithmic
  std::int64_t total_num_steps = 0;      // of WarmupDecayLR alone: where the rate reaches 0
};

// DeepSpeed's WarmupLR: from warmup_min_lr to warmup_max_lr, then constant; base lrs are ignored. The first two steps of the
// optimizer have warmup_min_lr, because as in DeepSpeed step() first sets the rate of iteration 0.
// Source: deepspeed/runtime/lr_schedules.py. Throws kInvalidArgument for rates that are not finite.
class ACCEL_EXPORT WarmupLR : public LRScheduler {
 public:
  explicit WarmupLR(torch::optim::Optimizer& optimizer, DeepSpeedWarmupOptions options = {});

 protected:
  // The factor of warmup_max_lr - warmup_min_lr, at and after warmup_num_steps. iteration: from 0.
  [[nodiscard]] virtual double share_after_warmup(std::int64_t /*iteration*/) const { return 1.0; }
  [[nodiscard]] const DeepSpeedWarmupOptions& options() const noexcept { return options_; }

 private:
  std::vector<double> rates(const std::vector<double>& current) final;
  DeepSpeedWarmupOptions options_;
};

// DeepSpeed's WarmupDecayLR: the same, then down to warmup_min_lr in a straight line until total_num_steps.
class ACCEL_EXPORT WarmupDecayLR final : public WarmupLR {
 public:
  WarmupDecayLR(torch::optim::Optimizer& optimizer, DeepSpeedWarmupOptions options);

 private:
  [[nodiscard]] double share_after_warmup(std::int64_t iteration) const override;
};

struct OneCycleOptions {
  double max_lr = 0.0;
  std::int64_t total_steps = 0;  // or epochs * steps_per_epoch
  double pct_start = 0.3;        // part of the cycle in which the rate rises
  bool linear = false;           // false: cosine
  bool cycle_momentum = true;    // move momentum (SGD) or beta1 (Adam) the other way
  double base_momentum = 0.85;
  double max_momentum = 0.95;
  double div_factor = 25.0;       // initial lr = max_lr / div_factor
  double final_div_factor = 1e4;  // last lr = initial lr / final_div_factor
  bool three_phase = false;
};

// Up to max_lr and down again, once (arXiv:1708.07120). Throws kInvalidArgument for options without a
// valid cycle, and for a step after total_steps.
class ACCEL_EXPORT OneCycleLR final : public LRScheduler {
 public:
  OneCycleLR(torch::optim::Optimizer& optimizer, OneCycleOptions options);
  [[nodiscard]] std::int64_t total_steps() const noexcept { return options_.total_steps; }
  [[nodiscard]] bool may_step() const override { return step_count() <= options_.total_steps; }

 private:
  std::vector<double> rates(const std::vector<double>& current) override;
  OneCycleOptions options_;
};

struct PlateauOptions {
  bool maximize = false;       // the metric should rise (an accuracy), not fall (a loss)
  double factor = 0.1;         // below 1
  std::int64_t patience = 10;  // steps without improvement before the rate falls
  double threshold = 1e-4;     // what counts as improvement
  bool threshold_is_relative = true;
  std::int64_t cooldown = 0;  // steps after a fall in which nothing is counted
  double min_lr = 0.0;
  double eps = 1e-8;  // smaller changes of the rate are not made
};

// Lowers the rate when a metric stops improving. Call step(metric); step() throws kInvalidArgument. A prepared scheduler counts a
// metric once, with any number of processes. Requires: the same metric on every rank (gather or reduce it), or their rates differ.
class ACCEL_EXPORT ReduceLROnPlateau final : public LRScheduler {
 public:
  explicit ReduceLROnPlateau(torch::optim::Optimizer& optimizer, PlateauOptions options = {});
  void step() override;
  void step(double metric) override;
  [[nodiscard]] bool counts_batches() const override { return false; }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::vector<double> rates(const std::vector<double>& current) override;
  [[nodiscard]] bool is_better(double metric) const;

  PlateauOptions options_;
  double metric_ = 0.0;
  double best_;
  std::int64_t cooldown_left_ = 0;
  std::int64_t num_bad_epochs_ = 0;
};

// The schedules of HF transformers. Counts are of scheduler steps; the factor of the base lr rises
// linearly from 0 over num_warmup_steps and then follows the shape in the name.
struct WarmupOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_training_steps = 0;  // warm-up included
};
struct CosineOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_training_steps = 0;
  double num_cycles = 0.5;  // waves of the cosine; 0.5 falls from 1 to 0 once
};
struct CosineRestartOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_training_steps = 0;
  std::int64_t num_cycles = 1;  // hard restarts at 1
};
struct PolynomialOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_training_steps = 0;
  double lr_end = 1e-7;  // a rate, not a factor; below the base lr
  double power = 1.0;
};
enum class DecayShape { kLinear, kCosine, kOneMinusSqrt };
struct WarmupStableDecayOptions {
  std::int64_t num_warmup_steps = 0;
  std::int64_t num_stable_steps = 0;
  std::int64_t num_decay_steps = 0;
  DecayShape warmup = DecayShape::kLinear;
  DecayShape decay = DecayShape::kCosine;
  double min_lr_ratio = 0.0;  // the factor at the end
  double num_cycles = 0.5;    // of a cosine decay
};

// The factors of the schedules with these names in the package transformers.
ACCEL_EXPORT LrFactor constant_with_warmup(std::int64_t num_warmup_steps);
ACCEL_EXPORT LrFactor linear_with_warmup(WarmupOptions options);
ACCEL_EXPORT LrFactor cosine_with_warmup(CosineOptions options);
ACCEL_EXPORT LrFactor cosine_with_hard_restarts(CosineRestartOptions options);
// base_lr: the optimizer's rate before the scheduler is made. Throws kInvalidArgument unless
// base_lr > lr_end.
ACCEL_EXPORT LrFactor polynomial_with_warmup(PolynomialOptions options, double base_lr);
ACCEL_EXPORT LrFactor warmup_stable_decay(WarmupStableDecayOptions options);

}  // namespace accel
