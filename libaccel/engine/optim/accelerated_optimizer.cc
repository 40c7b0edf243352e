#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <c10/util/Type.h>
#include <torch/optim/optimizer.h>

#include <accel/error.h>
#include <accel/lomo.h>
#include <accel/optim.h>
#include <accel/state.h>
#include <accel/train_eval.h>

#include "libaccel/engine/optim/disk_step.h"
#include "libaccel/engine/optim/fused_step.h"
#include "libaccel/engine/optim/gradient_clipping.h"
#include "libaccel/engine/optim/step_gate.h"
#include "libaccel/engine/process/join_roll.h"
#include "libaccel/interception/state_staging.h"
#include "libaccel/tensors/optimizer_traits.h"
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
  std::shared_ptr<DiskStep> disk;  // nullptr: states are in memory
  BackwardSteps backward_steps;
  std::size_t num_listed = 0;  // entries of all groups when these were last looked at

  [[nodiscard]] bool steps_in_backward() const {
    return dynamic_cast<const BackwardOptimizer*>(optimizer.get()) != nullptr;
  }

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

  void step_all(const FusedStep::IsPadded& is_padded) {
    if (fused) return fused->step(is_padded);
    optimizer->step();
  }

  [[nodiscard]] bool is_piece(const at::Tensor& parameter) const {
    return gate != nullptr && gate->is_piece(parameter);
  }

  [[nodiscard]] SpeculativeStep* speculation() const {
    return disk == nullptr ? nullptr : disk->speculation();
  }

  // A gradient is complete, in the backward.
  void land(const at::Tensor& parameter, const at::Tensor& gradient) {
    SpeculativeStep* const ahead = speculation();
    if (ahead == nullptr || !gradient_state.sync_gradients()) return;
    at::Tensor inverse_scale;
    if (scaler != nullptr && scaler->is_enabled())
      inverse_scale = at::full({}, static_cast<float>(1.0 / scaler->get_scale()), at::kFloat);
    ahead->land(
        parameter,
        gradient,
        inverse_scale,
        [this](const auto& is_padded) { step_all(is_padded); },
        [this](const at::Tensor& stepped) { return is_piece(stepped); });
  }

  // Counts what step(), which has been called, makes of a step in the backward.
  template <typename Call>
  void count_backward_step(const Call& step) {
    SpeculativeStep* const ahead = speculation();
    if (ahead == nullptr || ahead->is_empty()) return step();
    const bool was_right = ahead->is_right();
    step();
    const bool was_skipped = !ahead->is_empty();  // an overflow: nobody has looked at it
    ahead->drop();
    ++(was_right && !was_skipped ? backward_steps.kept : backward_steps.undone);
  }

  void update() {
    const auto step = [this](const FusedStep::IsPadded& is_padded) { step_all(is_padded); };
    const auto is_piece = [this](const at::Tensor& parameter) { return this->is_piece(parameter); };
    if (disk == nullptr) return step(is_piece);
    disk->step(
        step, is_piece, [this](const at::Tensor& stepped, std::int64_t begin, std::int64_t numel) {
          if (gate != nullptr) gate->was_stepped(stepped, begin, numel);
        });
  }

  // Runs what writes to parameters.
  template <typename Write>
  void write(Write write) {
    before_state_is_written();
    if (gate == nullptr) return write();
    try {
      gate->before_step();
      write();
      gate->after_step();
    } catch (...) {
      gate->abandon_step();
      throw;
    }
  }

  // Unless a gradient was not finite (fp16).
  void step_by(const std::function<void()>& step) {
    if (scaler == nullptr) return step();
    step_was_skipped = !scaler->step(*optimizer, step);
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
  shared_ = std::make_shared<Shared>(Shared{std::move(optimizer),
                                            std::move(scaler),
                                            {},
                                            false,
                                            nullptr,
                                            std::nullopt,
                                            std::nullopt,
                                            nullptr,
                                            {}});
  shared_->remove_repeated();
  // What is on record is of another one, that was at the same address.
  if (shared_->scaler != nullptr) shared_->scaler->forget(*shared_->optimizer);
}

void AcceleratedOptimizer::step() const {
  if (!shared_->gradient_state.sync_gradients() || shared_->steps_in_backward()) return;
  const JoinRoll::Within announced =
      announce_call(*shared_->optimizer, {.call = JoinRoll::Call::kStep});
  shared_->remove_repeated();
  detail::StepGate* const gate = shared_->gate.get();
  if (gate != nullptr) gate->settle();
  if (shared_->scaler != nullptr) unscale();
  if (shared_->clipping) shared_->clip(*shared_->clipping);
  shared_->count_backward_step(
      [this] { shared_->write([this] { shared_->step_by([this] { shared_->update(); }); }); });
  if (shared_->scaler != nullptr) shared_->scaler->update();
}

void AcceleratedOptimizer::step_behind_backward(double learning_rate,
                                                std::optional<double> max_norm) const {
  auto& optimizer = dynamic_cast<BackwardOptimizer&>(*shared_->optimizer);
  detail::StepGate* const gate = shared_->gate.get();
  if (gate != nullptr && !is_element_wise(optimizer)) {
    throw Error(ErrorCode::kUnsupported,
                c10::demangle(typeid(optimizer).name()) +
                    " steps whole tensors, and those of this model are divided over the ranks",
                "use Lomo, or train copies: NO_SHARD, ZeRO-0");
  }
  shared_->remove_repeated();
  if (gate != nullptr) gate->settle();
  if (shared_->scaler != nullptr) unscale();
  if (max_norm) shared_->clip(*max_norm);
  const auto step = [&optimizer, learning_rate] {
    optimizer.begin(learning_rate);
    for (auto& group : optimizer.param_groups()) {
      if (const auto most = optimizer.clip_grad_value())
        clip_gradient_value_(group.params(), *most);
      for (at::Tensor& parameter : group.params())
        if (parameter.grad().defined()) optimizer.step_parameter(parameter);
    }
  };
  shared_->write([this, &step] { shared_->step_by(step); });
  clear_gradients(optimizer, /*set_to_none=*/true);
  if (gate != nullptr) gate->clear_gradients();
  if (shared_->scaler == nullptr) return;
  shared_->scaler->update();
  shared_->scaler->forget(optimizer);
}

void AcceleratedOptimizer::unscale() const {
  GradScaler& scaler = *shared_->scaler;
  detail::StepGate* const gate = shared_->gate.get();
  if (gate != nullptr) gate->settle();
  SpeculativeStep* const ahead = shared_->speculation();
  const bool was_right = ahead != nullptr && ahead->is_right();
  if (!scaler.ensure_unscaled(*shared_->optimizer)) return;
  if (was_right) ahead->gradients_were_unscaled();
  if (gate == nullptr) return;
  scaler.combine_overflow(*shared_->optimizer,
                          [&](at::Tensor& found) { gate->combine_overflow(found); });
}

void AcceleratedOptimizer::set_clipping(double max_norm) const {
  shared_->clipping = max_norm;
}

void AcceleratedOptimizer::keep_state_in(const std::string& folder) const {
  shared_->disk = std::make_shared<DiskStep>(*shared_->optimizer, folder);
}

AcceleratedOptimizer::OnGradient AcceleratedOptimizer::step_in_backward() const {
  shared_->disk->step_in_backward();
  return [weak = std::weak_ptr<Shared>(shared_)](const at::Tensor& parameter,
                                                 const at::Tensor& gradient) {
    if (const auto shared = weak.lock()) shared->land(parameter, gradient);
  };
}

BackwardSteps AcceleratedOptimizer::backward_steps() const noexcept {
  return shared_->backward_steps;
}

StatePlaces* AcceleratedOptimizer::state_places() const noexcept {
  return shared_->disk.get();
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
  if (shared_->disk != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "step(closure) cannot be used while the optimizer's state is on disk",
                "call backward() and step() without a closure");
  }
  before_state_is_written();
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

namespace {

TrainEval* modes_of(torch::optim::Optimizer& optimizer) {
  auto* const modes = dynamic_cast<TrainEval*>(&optimizer);
  if (modes != nullptr && JoinRoll::current() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "train() or eval() of an optimizer within join_uneven_inputs(): ranks without "
                "batches do not take part in it",
                "call it before the scope begins or behind its end");
  }
  return modes;
}

}  // namespace

void AcceleratedOptimizer::train() const {
  if (TrainEval* const modes = modes_of(*shared_->optimizer))
    shared_->write([modes] { modes->train(); });
}

void AcceleratedOptimizer::eval() const {
  if (TrainEval* const modes = modes_of(*shared_->optimizer))
    shared_->write([modes] { modes->eval(); });
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
