// RecomputedUnits: an unmodified model whose modules of some classes are computed again in the backward, in place of keeping their
// activations. And which of them, so that a step fits into memory.
//
//   accel::RecomputedUnits units(*model, {"Block"});
//   for (const auto& batch : loader) {
//     torch::Tensor loss;
//     {
//       const auto forward = units.forward();
//       loss = loss_of(model->forward(batch.data), batch.target);
//     }
//     loss.backward();
//   }
//
// It is apply_activation_checkpointing() of PyTorch with a check for the class; nothing of the model is changed. With FSDP
// `activation_checkpointing` does the same for prepared models. What counts as a unit's computation, and limits:
// docs/guides/activations.md. Losses and gradients are equal to the bit to those without it.
//
// Threads:  the thread of the forward.
// Cost:     as activation_checkpoint.h. The first forward that is not planned compares what is computed again with what was saved.
// Source:   tests/unit/libaccel/placement/recomputed_units_plan_test.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accel/activation_checkpoint.h>
#include <accel/export.h>
#include <accel/plan.h>

namespace torch::nn {
class Module;
}
namespace torch::optim {
class Optimizer;
}

namespace accel {

struct FittedUnits;

class ACCEL_EXPORT RecomputedUnits {
 public:
  // While it lives, the operators of its thread are those of one forward.
  class ACCEL_EXPORT Forward {
   public:
    ~Forward();
    Forward(Forward&&) noexcept;
    Forward& operator=(Forward&&) = delete;

   private:
    friend class RecomputedUnits;
    struct Parts;
    explicit Forward(std::unique_ptr<Parts> parts);
    std::unique_ptr<Parts> parts_;
  };

  // classes: of modules, or globs of their paths ("blocks.*"), as transformer_cls_names_to_wrap of the FSDP plugin. Each module of
  // them is a unit, but for what is in a unit within it. Throws kInvalidArgument naming a class that no module has.
  RecomputedUnits(const torch::nn::Module& model,
                  const std::vector<std::string>& classes,
                  const ActivationCheckpointOptions& options = {});
  ~RecomputedUnits();
  RecomputedUnits(const RecomputedUnits&) = delete;
  RecomputedUnits& operator=(const RecomputedUnits&) = delete;

  [[nodiscard]] std::size_t num_units() const noexcept;
  // The path of each unit's module, in the order of the model's parameters: "blocks.0".
  [[nodiscard]] const std::vector<std::string>& names() const noexcept;
  // By unit, in the order of the model's parameters, whether it is computed again; at first all are. Throws kShapeMismatch for
  // another number of units.
  void set_recomputed(const std::vector<bool>& is_recomputed);
  [[nodiscard]] const std::vector<bool>& recomputed() const noexcept;

  // Without a graph (NoGradGuard) nothing is different.
  [[nodiscard]] Forward forward();

 private:
  friend ACCEL_EXPORT std::optional<FittedUnits> fit_recomputed_units(
      RecomputedUnits& units,
      torch::nn::Module& model,
      torch::optim::Optimizer* optimizer,
      const std::function<void()>& step,
      std::int64_t max_bytes,
      const PlannedRun& run);
  struct State;
  std::unique_ptr<State> state_;
};

// A choice of units, and what a step takes with it.
struct FittedUnits {
  std::vector<bool> is_recomputed;
  PlannedMemory memory;
  double extra_flops = 0;  // beside those of the step that keeps all
  double flops = 0;        // of the step that keeps all
};

// Has `units` compute again as little as possible, so that the step's peak is at most `max_bytes`: the fewest operations of matrix
// products, convolutions and attention more, then the fewest bytes. `step` is forward and backward of one batch as StepPlan takes
// it, with units.forward() around the forward. nullopt: even all of them are not enough; then all are computed again.
// The choice is found from one plan for each unit, or for each kind of equal units, and planned as it is before it is returned: the
// memory is that plan's. Cost: some plans more than there are kinds. Errors as StepPlan and StepPlan::memory().
[[nodiscard]] ACCEL_EXPORT std::optional<FittedUnits> fit_recomputed_units(
    RecomputedUnits& units,
    torch::nn::Module& model,
    torch::optim::Optimizer* optimizer,
    const std::function<void()>& step,
    std::int64_t max_bytes,
    const PlannedRun& run = {});

}  // namespace accel
