#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/optim.h>
#include <accel/state.h>

#include "libaccel/engine/optim/fused_step.h"
#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/engine/optim/step_gate.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/tensors/unique_parameters.h"

namespace accel {
namespace {

constexpr double kClippingNorm = 2.0;

// torch::optim::Optimizer::zero_grad() detaches gradients in place, which those that are views of the
// reducer's buckets refuse.
void clear_gradients(torch::optim::Optimizer& optimizer, bool set_to_none) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    for (at::Tensor& parameter : group.params()) {
      at::Tensor& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
        continue;
      }
      if (gradient.grad_fn() != nullptr) gradient = gradient.detach();
      gradient.zero_();
    }
  }
}

// Ranks without batches take part in what is called while the result lives.
JoinRoll::Within announce_call(const torch::optim::Optimizer& optimizer,
                               const JoinRoll::Announcement& call) {
  JoinRoll* const roll = JoinRoll::of_training();
  if (roll != nullptr) roll->announce_of(&optimizer, call);
  return JoinRoll::Within(roll);
}

}  // namespace

struct AcceleratedOptimizer::Shared {
  std::shared_ptr<torch::optim::Optimizer> optimizer;
  std::shared_ptr<GradScaler> scaler;
  GradientState gradient_state;
  bool step_was_skipped = false;
  std::shared_ptr<detail::StepGate> gate;  // nullptr: every rank has the whole state
  std::optional<FusedStep> fused;
  std::optional<double> clipping;  // the norm that steps clip to
  std::size_t num_listed = 0;      // entries of all groups when these were last looked at

  // Groups and parameters may be added at any time.
  void remove_repeated() {
    if (count_listed() == num_listed) return;
    remove_repeated_parameters(*optimizer);
    num_listed = count_listed();
  }

  [[nodiscard]] std::size_t count_listed() const {
    std::size_t count = 0;
    for (const auto& group : optimizer->param_groups()) count += group.params().size();
    return count;
  }

  void update() {
    if (!fused) {
      optimizer->step();
      return;
    }
    fused->step([this](const at::Tensor& parameter) {
      return gate != nullptr && gate->is_piece(parameter);
    });
  }

  void clip(double max_norm) {
    std::vector<at::Tensor> pieces;
    std::vector<at::Tensor> whole;
    for (const auto& group : optimizer->param_groups()) {
      for (const at::Tensor& parameter : group.params())
        (gate != nullptr && gate->is_piece(parameter) ? pieces : whole).push_back(parameter);
    }
    if (gate == nullptr) {
      clip_gradient_norm_(whole, max_norm, kClippingNorm);
    } else {
      clip_gradient_norm_(pieces, whole, max_norm, kClippingNorm, [this](const at::Tensor& norm) {
        return gate->combine_norm(norm, kClippingNorm);
      });
    }
  }
};

AcceleratedOptimizer::AcceleratedOptimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                           std::shared_ptr<GradScaler> scaler) {
  if (optimizer == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "prepare() got a null optimizer",
                "construct the optimizer before prepare()");
  }
  shared_ = std::make_shared<Shared>(Shared{
      std::move(optimizer), std::move(scaler), {}, false, nullptr, std::nullopt, std::nullopt});
  shared_->remove_repeated();
  // What is on record is of another one, that was at the same address.
  if (shared_->scaler != nullptr) shared_->scaler->forget(*shared_->optimizer);
}

void AcceleratedOptimizer::step() const {
  if (!shared_->gradient_state.sync_gradients()) return;
  const JoinRoll::Within announced =
      announce_call(*shared_->optimizer, {.call = JoinRoll::Call::kStep});
  shared_->remove_repeated();
  detail::StepGate* const gate = shared_->gate.get();
  if (gate != nullptr) gate->settle();
  if (shared_->scaler != nullptr) unscale();
  if (shared_->clipping) shared_->clip(*shared_->clipping);
  try {
    if (gate != nullptr) gate->before_step();
    if (shared_->scaler == nullptr) {
      shared_->update();
    } else {
      shared_->step_was_skipped =
          !shared_->scaler->step(*shared_->optimizer, [this] { shared_->update(); });
    }
    if (gate != nullptr) gate->after_step();
  } catch (...) {
    if (gate != nullptr) gate->abandon_step();
    throw;
  }
  if (shared_->scaler != nullptr) shared_->scaler->update();
}

void AcceleratedOptimizer::unscale() const {
  GradScaler& scaler = *shared_->scaler;
  detail::StepGate* const gate = shared_->gate.get();
  if (gate != nullptr) gate->settle();
  if (!scaler.ensure_unscaled(*shared_->optimizer) || gate == nullptr) return;
  scaler.combine_overflow(*shared_->optimizer,
                          [&](at::Tensor& found) { gate->combine_overflow(found); });
}

void AcceleratedOptimizer::set_clipping(double max_norm) const {
  shared_->clipping = max_norm;
}

void AcceleratedOptimizer::set_gate(std::shared_ptr<detail::StepGate> gate) const {
  shared_->gate = std::move(gate);
}

const std::shared_ptr<detail::StepGate>& AcceleratedOptimizer::gate() const noexcept {
  return shared_->gate;
}

at::Tensor AcceleratedOptimizer::step(std::function<at::Tensor()> closure) const {
  if (!shared_->gradient_state.sync_gradients()) return {};
  shared_->remove_repeated();
  if (shared_->scaler != nullptr && shared_->scaler->is_enabled()) {
    throw Error(ErrorCode::kInvalidArgument,
                "step(closure) cannot be used while gradients are scaled",
                "use mixed_precision = bf16, or an optimizer without a closure");
  }
  if (JoinRoll::current() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "step(closure) cannot be used in join_uneven_inputs(): a rank without batches has "
                "no closure",
                "call backward() and step() without a closure");
  }
  if (shared_->clipping) {
    throw Error(ErrorCode::kUnsupported,
                "step(closure) cannot clip: gradients appear inside of the closure",
                "leave gradient_clipping out, and clip in the closure");
  }
  if (shared_->gate != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "step(closure) cannot be used while the optimizer's state is sharded",
                "call backward() and step() without a closure");
  }
  return shared_->optimizer->step(std::move(closure));
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) const {
  if (!shared_->gradient_state.sync_gradients()) return;
  const JoinRoll::Within announced = announce_call(
      *shared_->optimizer,
      {.call = JoinRoll::Call::kZeroGrad, .a = static_cast<std::int64_t>(set_to_none)});
  clear_gradients(*shared_->optimizer, set_to_none);
  if (shared_->gate != nullptr) shared_->gate->clear_gradients();
  if (shared_->scaler != nullptr) shared_->scaler->forget(*shared_->optimizer);
}

void AcceleratedOptimizer::use_fused_kernels(bool on) const {
  shared_->fused.reset();
  if (on) shared_->fused.emplace(*shared_->optimizer);
}

bool AcceleratedOptimizer::step_was_skipped() const noexcept {
  return shared_->step_was_skipped;
}

torch::optim::Optimizer& AcceleratedOptimizer::optimizer() const noexcept {
  return *shared_->optimizer;
}

const std::shared_ptr<GradScaler>& AcceleratedOptimizer::scaler() const noexcept {
  return shared_->scaler;
}

}  // namespace accel
