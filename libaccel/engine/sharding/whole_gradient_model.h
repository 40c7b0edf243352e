// WholeGradientModel: ZeRO-1. Optimizer states are divided over the ranks; gradients are averaged as copies (DDP) do, and every
// rank has them whole after backward.
//
// So code that reads or changes `parameter.grad()` works as with copies: torch::nn::utils::clip_grad_norm_, zero_grad() of
// the module, gradients of your own. The optimizer's pieces take their part of it when the optimizer asks; and those that have
// none when a backward ends, so that step() of the optimizer itself, which asks nobody, is refused and does not pass them by.
//
// Threads:  the thread that trains; LibTorch calls back from its backward threads.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include <accel/accelerator_options.h>

#include "libaccel/engine/gradients/ddp_reducer.h"
#include "libaccel/engine/sharding/sharded_model.h"

namespace accel::sharding {

class WholeGradientModel final : public ShardedModel {
 public:
  // Throws what ShardedModel and DdpReducer throw. Requires: settings.keeps_whole_gradients.
  WholeGradientModel(const torch::nn::Module& module,
                     const std::shared_ptr<Mesh>& mesh,
                     const FsdpSettings& settings,
                     const PrecisionRecipe& recipe,
                     const DistributedDataParallelKwargs& options,
                     std::optional<c10::Device> device);

  void before_forward() override { reducer_.before_forward(); }
  [[nodiscard]] bool wants_outputs() const noexcept override { return reducer_.wants_outputs(); }
  void after_forward(std::vector<at::Tensor>& outputs) override { reducer_.after_forward(outputs); }
  void begin_backward() noexcept override { reducer_.begin_backward(); }
  void after_backward() override { reducer_.after_backward(); }
  void abandon_backward() noexcept override { reducer_.abandon_backward(); }
  bool set_sync_in_backward(bool sync) noexcept override {
    return reducer_.set_sync_in_backward(sync);
  }
  [[nodiscard]] bool syncs_in_backward() const noexcept override {
    return reducer_.syncs_in_backward();
  }
  void sync_next_backward() override { reducer_.sync_next_backward(); }
  [[nodiscard]] GradientExchange& exchange() noexcept override { return reducer_.exchange(); }
  void end_join(int from) override { reducer_.end_join(from); }
  void sum_in_order(SubtreeSums& own, const MicroBatches& run) override {
    reducer_.sum_in_order(own, run);
    settle();
  }
  [[nodiscard]] Stateful* hook_state() const noexcept override { return reducer_.hook_state(); }
  void agree_on_hook_state() override { reducer_.agree_on_hook_state(); }

  // Gives each piece its part of the parameter's gradient as it is now: a view, where it lies as the parameter does.
  void settle() override;

 private:
  void give_parts();

  DdpReducer reducer_;
};

}  // namespace accel::sharding
