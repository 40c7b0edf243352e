// Training: where a training loop is in its batches and accumulations, and what is done to gradients before a step.
//
// Owns the counts of batches and the flag of set_trigger(); reads what was prepared. Its state, as checkpoints have it, is this
// rank's generators, where it stands in an accumulation, and what communication hooks remember.
//
// Threads:  the thread that trains; every rank makes the same calls.
// Errors    throws kPeerLost, kProcessGroup.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/accelerator.h>
#include <accel/state_dict.h>

#include "libaccel/api/accelerator/gradient_weights.h"
#include "libaccel/api/accelerator/nan_watcher.h"
#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/api/accelerator/reproducible_steps.h"
#include "libaccel/api/accelerator/step_observer.h"

namespace accel::detail {

class Training final : public Stateful {
 public:
  // Throws kInvalidArgument, kEnvInvalid for an accumulation that cannot be.
  explicit Training(const Preparation& prepared);

  // Borrowed. They are told in this order.
  void observe(StepObserver& observer) { observers_.push_back(&observer); }

  [[nodiscard]] const GradientState& gradient_state() const noexcept { return gradient_state_; }
  void set_accumulation_steps(int steps);
  // A batch begins: whether it ends an accumulation, or synchronises all the same.
  bool next_batch_syncs();
  // Another rank runs a backward, and this one takes part.
  void count_backward();
  // A prepared loader's loop is done with a batch.
  void end_batch();
  void backward(const at::Tensor& loss, const BackwardOptions& options);
  void lomo_backward(const at::Tensor& loss, double learning_rate);
  // The program asks for autocast itself.
  void note_autocast() noexcept { has_autocast_ = true; }

  at::Tensor clip_norm(const std::vector<at::Tensor>& parameters,
                       double max_norm,
                       double norm_type) const;
  void clip_value(const std::vector<at::Tensor>& parameters, double clip_value) const;
  void unscale(const AcceleratedOptimizer& optimizer) const;
  void unscale_all() const;

  void set_trigger();
  [[nodiscard]] bool check_trigger();

  // backward() calls since training began, restarts included.
  [[nodiscard]] std::int64_t num_batches() const noexcept {
    return steps_ ? steps_->num_micro_batches() : num_batches_;
  }
  // What was loaded decides where the counts go on. Requires: every rank calls it.
  void go_on_from(std::int64_t num_batches);
  // The next batch begins an accumulation; what was prepared is let go of.
  void begin_anew();
  [[nodiscard]] GradientWeights& weights() noexcept { return weights_; }
  // nullptr: training is not reproducible.
  [[nodiscard]] const ReproducibleSteps* reproducible() const noexcept {
    return steps_ ? &*steps_ : nullptr;
  }
  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  [[nodiscard]] at::Tensor loss_part(const at::Tensor& loss, std::optional<double> weight);
  void refuse_weight_without_end() const;
  // By the scaler, where there is one.
  [[nodiscard]] at::Tensor scaled(const at::Tensor& part) const;
  [[nodiscard]] bool exchanges_gradients() const;
  void differentiate(const at::Tensor& scaled_loss, const BackwardOptions& options) const;
  // The one that steps in the backward. Throws kInvalidArgument unless there is one.
  [[nodiscard]] const AcceleratedOptimizer& backward_optimizer() const;
  void refuse_step_in_backward() const;
  // Its backward has failed.
  void abandon_micro_batch();
  void run_on_all_ranks(const at::Tensor& loss, const BackwardOptions& options) const;
  void announce_backward() const;
  void warn_of_models_without_optimizer() const;
  // What stands for parameters on this rank: pieces of divided ones, and those that are whole.
  struct OwnGradients {
    bool is_of_divided = false;  // a model is divided, if only along an axis of one rank
    std::vector<at::Tensor> pieces;
    std::vector<at::Tensor> whole;
  };
  at::Tensor clip_exactly(const OwnGradients& own, double max_norm) const;
  // Settles them first.
  [[nodiscard]] OwnGradients own_gradients(const std::vector<at::Tensor>& parameters) const;

  const Preparation& prepared_;
  GradientState gradient_state_;
  GradientWeights weights_;
  std::optional<ReproducibleSteps> steps_;
  std::vector<StepObserver*> observers_;
  std::int64_t batch_count_ = 0;  // since the last end of a loader
  std::int64_t num_batches_ = 0;
  std::int64_t boundary_batch_ = 0;    // num_batches_ at the last boundary
  bool has_autocast_ = false;          // the program has called autocast()
  std::optional<NanWatcher> watcher_;  // with AcceleratorOptions::nan_watch
  at::Tensor trigger_;                 // 0-d int64: 1 after set_trigger()
};

}  // namespace accel::detail
