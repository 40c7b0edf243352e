// Optim: the optimizer and the scheduler that Accelerator::prepare() hands back.
//
// They forward to the wrapped objects if this batch ends an accumulation (GradientState::sync_gradients()). Otherwise step() and
// zero_grad() do nothing. So the training loop is the same with and without accumulation, ranks and loss scaling.
//
// Both are handles: copies refer to the same object.
//
// Threads:  the thread that trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/precision.h>
#include <accel/schedulers.h>
#include <accel/state_dict.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

class StatePlaces;

namespace detail {
class Preparation;
class StepGate;
class Training;
}  // namespace detail

// How the steps in the backward went (step_in_backward of the plugins).
struct BackwardSteps {
  std::int64_t kept = 0;  // what was stepped in the backward was right
  std::int64_t undone =
      0;  // it was not, as when gradients were clipped, and was stepped anew or skipped
};

// An optimizer as prepare() hands it back: it steps when an accumulation is complete.
class ACCEL_EXPORT AcceleratedOptimizer {
 public:
  // scaler: nullptr unless gradients are scaled (fp16). Throws kInvalidArgument for a null
  // optimizer.
  explicit AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                std::shared_ptr<GradScaler> scaler = nullptr);

  // Steps, unless gradients are still being accumulated or one of them was not finite (fp16). Nothing for an optimizer that
  // steps in the backward (accel/lomo.h).
  void step() const;
  // The closure is called by the optimizer and returns the loss, which is passed on; an undefined
  // tensor when there was no step. Throws kInvalidArgument with a scaler: it cannot see inside the
  // closure.
  at::Tensor step(std::function<at::Tensor()> closure) const;

  // Clears the gradients, unless they are still being accumulated. set_to_none releases their
  // memory. On several ranks the wrapped optimizer's own zero_grad(false) throws where
  // gradients are views of c10d::Reducer's buckets, which it cannot clear.
  void zero_grad(bool set_to_none = true) const;

  // Sets the mode of an optimizer that has two, as the schedule-free ones do (accel/train_eval.h); of others it does nothing. On
  // a divided model every rank calls it.
  void train() const;
  void eval() const;

  // Lets step() without a closure run LibTorch's fused kernels, as fused=True does in Python: one pass over the memory
  // in place of one for each operation, and one call for each unit of a sharded model. State, options and checkpoints
  // stay as they are. Not the default, for the kernels round in another way than torch::optim: results differ in the
  // last places. Throws kUnsupported, naming the type, for an optimizer that is none of SGD, Adam and AdamW.
  void use_fused_kernels(bool on = true) const;

  // Whether the last step at a sync was left out because a gradient was not finite.
  [[nodiscard]] bool step_was_skipped() const noexcept;

  [[nodiscard]] BackwardSteps backward_steps() const noexcept;

  [[nodiscard]] torch::optim::Optimizer& optimizer() const noexcept;
  torch::optim::Optimizer* operator->() const noexcept { return &optimizer(); }
  [[nodiscard]] const std::shared_ptr<GradScaler>& scaler() const noexcept;

  friend bool operator==(const AcceleratedOptimizer&, const AcceleratedOptimizer&) = default;

 private:
  friend class detail::Preparation;
  friend class detail::Training;
  struct Shared;
  // The optimizer's state is divided over the ranks: the gate surrounds its steps.
  void set_gate(std::shared_ptr<detail::StepGate> gate) const;
  [[nodiscard]] const std::shared_ptr<detail::StepGate>& gate() const noexcept;
  // States lie in a file without a name in this folder, and come into memory for the step, part by part. Throws kUnsupported for
  // an optimizer whose states cannot be taken apart, kFileIo for a folder in which no file can be made.
  void keep_state_in(const std::string& folder) const;
  // Steps each parameter in the backward, as its gradient lands, and lets step() find out whether that was right. The result is to
  // be called with a parameter and its gradient; it holds nothing. Requires: keep_state_in().
  using OnGradient = std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)>;
  [[nodiscard]] OnGradient step_in_backward() const;
  // Where loads put states; nullptr: into memory.
  [[nodiscard]] StatePlaces* state_places() const noexcept;
  // Steps clip the norm of the gradients of all groups together to max_norm.
  void set_clipping(double max_norm) const;
  // Steps an optimizer that has stepped in no backward (accel/lomo.h), by the gradients of all, which go. max_norm: to clip to.
  void step_behind_backward(double learning_rate, std::optional<double> max_norm) const;
  // fp16: divides the gradients by the scale, once per step, and lets all ranks know whether any is not finite.
  void unscale() const;

  std::shared_ptr<Shared> shared_;
};

struct AcceleratedSchedulerOptions {
  bool step_with_optimizer = true;  // false: every step() steps, whatever the optimizers did
  bool split_batches = false;       // true: one step per batch, whatever the number of processes
};

// Steps the schedule as often as batches were consumed by all processes: num_processes times per
// optimizer step. That is what keeps schedules written for one process unchanged; with
// split_batches the global batch stays the same, and so does the count. A schedule that follows
// measurements (ReduceLROnPlateau) steps once for each.
class ACCEL_EXPORT AcceleratedScheduler final : public Stateful {
 public:
  // optimizers: those whose skipped steps hold the schedule back.
  AcceleratedScheduler(std::shared_ptr<Scheduler> scheduler,
                       std::vector<AcceleratedOptimizer> optimizers,
                       AcceleratedSchedulerOptions options = {});

  // Steps, unless gradients are still being accumulated, an optimizer's step was skipped, or the
  // schedule is at its end.
  void step() const;
  void step(double metric) const;

  [[nodiscard]] std::vector<double> get_last_lr() const { return scheduler().get_last_lr(); }
  [[nodiscard]] Scheduler& scheduler() const noexcept;

  [[nodiscard]] StateDict state_dict() const override { return scheduler().state_dict(); }
  void load_state_dict(const StateDict& state) override { scheduler().load_state_dict(state); }

  friend bool operator==(const AcceleratedScheduler& a, const AcceleratedScheduler& b) {
    return a.shared_ == b.shared_;
  }

 private:
  friend class detail::Preparation;
  struct Shared;
  template <typename Step>
  void step_with(Step step) const;
  void set_optimizers(std::vector<AcceleratedOptimizer> optimizers) const;

  std::shared_ptr<Shared> shared_;
};

}  // namespace accel
