// ScheduleFree: AdamW and SGD that average the weights and need no learning-rate schedule.
//
//   accel::AdamWScheduleFree adamw(net->parameters(), accel::AdamWScheduleFreeOptions(2.5e-3).warmup_steps(100));
//   auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data_loader);
//   optimizer.train();   // before the first step, and after each evaluation
//   ...
//   optimizer.eval();    // before the model is evaluated, or saved for others
//
// They have two sets of weights: x, the average, for evaluation, and z, the result of plain steps. The parameters hold x after
// eval(), and after train() the point between them, y = beta x + (1 - beta) z, where gradients are taken.
//
// Make checkpoints (save_state) in train mode, because a change of mode rounds the parameters. A checkpoint of eval mode contains x
// and the mode.
// Threads:  the thread that trains.
// Cost:     AdamW takes as much memory as torch's, with z instead of the mean; SGD one tensor as large as the parameters. train() and
//           eval(): one pass over the parameters.
// Errors    step() throws kInvalidArgument in eval mode, which is the initial mode, and kUnsupported for sparse gradients.
// Source:   Defazio et al. 2024, "The Road Less Scheduled"; formulas, names and defaults of the Python package schedulefree 1.4.1
//           (foreach = False). tests/peer/train_peer.py compares to the bit.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include <accel/detail/checkpointed_optimizer.h>
#include <accel/export.h>
#include <accel/train_eval.h>

namespace accel {

// The progress of both optimizers, for each group. Part of checkpoints.
struct ScheduleFreeProgress {
  std::int64_t k = 0;       // steps
  bool train_mode = false;  // the current content of the parameters
  double weight_sum = 0;    // of all steps in the average
  double lr_max = -1;
  double scheduled_lr = 0;  // of the last step, warm-up included

  friend bool operator==(const ScheduleFreeProgress&, const ScheduleFreeProgress&) = default;
};

struct ACCEL_EXPORT AdamWScheduleFreeOptions
    : torch::optim::OptimizerCloneableOptions<AdamWScheduleFreeOptions> {
  AdamWScheduleFreeOptions(double lr = 2.5e-3);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 2.5e-3;
  typedef std::tuple<double, double> betas_t;
  TORCH_ARG(betas_t, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(std::int64_t, warmup_steps) = 0;  // in which the rate grows from 0
  TORCH_ARG(double, r) = 0;                   // the average weighs step k as k^r
  TORCH_ARG(double, weight_lr_power) = 2;     // and by this power of the largest rate so far
  TORCH_ARG(ScheduleFreeProgress, progress);

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT AdamWScheduleFreeState
    : torch::optim::OptimizerCloneableParamState<AdamWScheduleFreeState> {
  TORCH_ARG(at::Tensor, z);
  TORCH_ARG(at::Tensor, exp_avg_sq);
};

class ACCEL_EXPORT AdamWScheduleFree : public detail::CheckpointedOptimizer, public TrainEval {
 public:
  // Throws kInvalidArgument naming an invalid option.
  explicit AdamWScheduleFree(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                             AdamWScheduleFreeOptions defaults = {});
  explicit AdamWScheduleFree(std::vector<at::Tensor> parameters,
                             AdamWScheduleFreeOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void train() override;
  void eval() override;
};

// Options of SGDScheduleFree, with the names of the package schedulefree.
struct ACCEL_EXPORT SGDScheduleFreeOptions
    : torch::optim::OptimizerCloneableOptions<SGDScheduleFreeOptions> {
  SGDScheduleFreeOptions(double lr = 1.0);  // NOLINT: implicit, as in LibTorch
  TORCH_ARG(double, lr) = 1.0;
  TORCH_ARG(double, momentum) = 0.9;  // above 0, below 1
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(std::int64_t, warmup_steps) = 0;
  TORCH_ARG(double, r) = 0;
  TORCH_ARG(double, weight_lr_power) = 2;
  TORCH_ARG(ScheduleFreeProgress, progress);

 public:
  double get_lr() const override { return lr(); }
  void set_lr(const double lr) override { this->lr(lr); }
};

struct ACCEL_EXPORT SGDScheduleFreeState
    : torch::optim::OptimizerCloneableParamState<SGDScheduleFreeState> {
  TORCH_ARG(at::Tensor, z);
};

// SGD without a schedule; see the beginning of this file.
class ACCEL_EXPORT SGDScheduleFree : public detail::CheckpointedOptimizer, public TrainEval {
 public:
  // As AdamWScheduleFree.
  explicit SGDScheduleFree(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                           SGDScheduleFreeOptions defaults = {});
  explicit SGDScheduleFree(std::vector<at::Tensor> parameters,
                           SGDScheduleFreeOptions defaults = {});

  at::Tensor step(LossClosure closure = nullptr) override;
  void train() override;
  void eval() override;
};

}  // namespace accel
