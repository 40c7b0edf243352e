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

// Counts steps in the backward (step_in_backward of the plugins).
struct BackwardSteps {
  std::int64_t kept = 0;  // steps in the backward that were correct
  std::int64_t undone =
      0;  // steps that were not (gradients were clipped, for example); repeated or skipped
};

// A prepared optimizer: it steps when an accumulation is complete.
class ACCEL_EXPORT AcceleratedOptimizer {
 public:
  // scaler: nullptr unless gradients are scaled (fp16). Throws kInvalidArgument for a null
  // optimizer.
  explicit AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                std::shared_ptr<GradScaler> scaler = nullptr);

  // Steps, unless gradients are still being accumulated or one of them was not finite (fp16). Does nothing for an optimizer that
  // steps in the backward (accel/lomo.h).
  void step() const;
  // The optimizer calls the closure, which returns the loss. Returns the loss, or an undefined tensor
  // if there was no step. Throws kInvalidArgument with a scaler, because it cannot see inside the
  // closure.
  at::Tensor step(std::function<at::Tensor()> closure) const;

  // Clears the gradients, unless they are still being accumulated. set_to_none releases their
  // memory. On several ranks zero_grad(false) of the original optimizer throws if gradients are
  // views of c10d::Reducer's buckets, which it cannot clear.
  void zero_grad(bool set_to_none = true) const;

  // Sets the mode of an optimizer with two modes, such as the schedule-free ones (accel/train_eval.h). For other optimizers it does
  // nothing. With a divided model every rank must call it.
  void train() const;
  void eval() const;

  // Lets step() without a closure run LibTorch's fused kernels, like fused=True in Python: one pass over the memory
  // instead of one for each operation, and one call for each unit of a sharded model. State, options and checkpoints
  // do not change. It is not the default, because the kernels round differently from torch::optim: results differ in
  // the last digits. Throws kUnsupported, naming the type, for optimizers other than SGD, Adam and AdamW.
  void use_fused_kernels(bool on = true) const;

  // Whether the last step at a sync was skipped because a gradient was not finite.
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
  // For a state that is divided over the ranks: the gate surrounds the steps.
  void set_gate(std::shared_ptr<detail::StepGate> gate) const;
  [[nodiscard]] const std::shared_ptr<detail::StepGate>& gate() const noexcept;
  // Keeps states in a file without a name in this folder, and loads them part by part for the step. Throws kUnsupported for an
  // optimizer whose states cannot be separated, kFileIo if no file can be made in the folder.
  void keep_state_in(const std::string& folder) const;
  // Steps each parameter in the backward, when its gradient is complete, and lets step() check whether this was right. Call the result
  // with a parameter and its gradient; it owns nothing. Requires: keep_state_in().
  using OnGradient = std::function<void(const at::Tensor& parameter, const at::Tensor& gradient)>;
  [[nodiscard]] OnGradient step_in_backward() const;
  // Where loads store states; nullptr: in memory.
  [[nodiscard]] StatePlaces* state_places() const noexcept;
  // Steps clip the norm of the gradients of all groups together to max_norm.
  void set_clipping(double max_norm) const;
  // Steps an optimizer of accel/lomo.h after the backward, with all gradients, and frees them. max_norm: the norm to clip to.
  void step_behind_backward(double learning_rate, std::optional<double> max_norm) const;
  // fp16: divides the gradients by the scale, once per step, and tells all ranks whether any is not finite.
  void unscale() const;

  std::shared_ptr<Shared> shared_;
};

struct AcceleratedSchedulerOptions {
  bool step_with_optimizer =
      true;                    // false: every step() steps, also if the optimizers skipped theirs
  bool split_batches = false;  // true: one step per batch, for any number of processes
};

// Steps the schedule once for each batch of all processes: num_processes times per optimizer step.
// So schedules for one process work unchanged. With split_batches the global batch stays the same,
// and so does the count. A schedule that follows a metric (ReduceLROnPlateau) steps once for each
// metric.
class ACCEL_EXPORT AcceleratedScheduler final : public Stateful {
 public:
  // optimizers: if one of them skips its step, the schedule does not step.
  AcceleratedScheduler(std::shared_ptr<Scheduler> scheduler,
                       std::vector<AcceleratedOptimizer> optimizers,
                       AcceleratedSchedulerOptions options = {});

  // Steps, unless gradients are still being accumulated, an optimizer skipped its step, or the
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
