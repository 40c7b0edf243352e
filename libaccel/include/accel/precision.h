// Precision: autocast as a scope, and the loss scaler that fp16 needs.
//
// Autocast makes LibTorch run matrix products and convolutions in a 16-bit type and keep the rest
// in fp32. GradScaler multiplies the loss so that small fp16 gradients do not vanish, divides the
// gradients before the optimizer sees them, and skips a step when one of them is not finite.
//
//   per optimizer   ready --unscale--> unscaled --step--> stepped --update--> ready
//                                      unscaled --forget--> ready
//
// Threads:  both belong to the thread that trains; LibTorch's autocast flags are thread-local.
// Source:   torch.amp; sequences compared in tests/unit/libaccel/train/precision_test.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <unordered_map>

#include <ATen/core/Tensor.h>

#include <accel/export.h>
#include <accel/state_dict.h>

namespace torch::optim {
class Optimizer;
}

namespace accel {

struct AutocastOptions {
  c10::DeviceType device_type = c10::DeviceType::CPU;
  at::ScalarType dtype = at::kBFloat16;
  bool enabled = true;        // false: a scope in fp32 inside an autocast scope
  bool cache_enabled = true;  // keep 16-bit copies of parameters until the outermost scope ends
};

// Switches autocast for a scope and restores what was there before, in reverse order of
// construction. The cache of cast parameters is cleared when the outermost scope ends.
class ACCEL_EXPORT Autocast {
 public:
  // A scope that changes nothing.
  [[nodiscard]] Autocast() = default;
  [[nodiscard]] explicit Autocast(const AutocastOptions& options);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool is_active_ = false;
  bool was_enabled_ = false;
  bool was_cache_enabled_ = true;
  c10::DeviceType device_type_ = c10::DeviceType::CPU;
  at::ScalarType previous_dtype_ = at::kBFloat16;
};

// Names and defaults of torch.amp.GradScaler.
struct GradScalerKwargs {
  double init_scale = 65536.0;
  double growth_factor = 2.0;           // applied after growth_interval steps without an overflow
  double backoff_factor = 0.5;          // applied after an overflow
  std::int64_t growth_interval = 2000;  // in steps
  bool enabled = true;                  // false: scale() and step() pass through

  // From DeepSpeed's loss scaler (deepspeed/runtime/fp16/loss_scaler.py); these defaults change nothing.
  bool dynamic = true;  // false: the scale stays; a step with an overflow is left out all the same
  double min_scale = 0.0;  // no overflow brings the scale below
  std::int64_t hysteresis =
      1;  // the overflow that brings the scale down: the second one of a growth interval for 2
  bool consecutive_hysteresis = false;  // overflows are counted anew after each step without one
};

// state_dict() has the keys of the Python class: scale, growth_factor, backoff_factor,
// growth_interval, _growth_tracker; with hysteresis also _hysteresis_left.
class ACCEL_EXPORT GradScaler final : public Stateful {
 public:
  // Throws kInvalidArgument, naming the option, unless init_scale > 0, growth_factor > 1, 0 < backoff_factor < 1,
  // growth_interval > 0, min_scale >= 0, hysteresis >= 1 and all are finite.
  explicit GradScaler(GradScalerKwargs options = {}, c10::Device device = c10::Device(c10::kCPU));

  // loss * scale. All gradients until the next call have this scale: a change by update() meanwhile, after the step of
  // another optimizer, does not count for them.
  [[nodiscard]] at::Tensor scale(const at::Tensor& loss);

  // Divides the gradients of the optimizer by the scale of their loss and remembers whether all were finite.
  // Throws kInvalidArgument when called twice for an optimizer between two update(), and for fp16
  // gradients (keep the parameters in fp32).
  void unscale_(torch::optim::Optimizer& optimizer);

  // As unscale_(), but does nothing when the optimizer's gradients are already unscaled. Returns
  // whether it unscaled them.
  bool ensure_unscaled(torch::optim::Optimizer& optimizer);

  // The finding of unscale_() is a 0-d float, not 0 when a gradient was not finite. `combine` replaces
  // it by the finding of all ranks, whose gradients differ when gradients are sharded.
  // Requires: unscale_() was called.
  void combine_overflow(const torch::optim::Optimizer& optimizer,
                        const std::function<void(at::Tensor&)>& combine);

  // Steps the optimizer unless a gradient was infinite or NaN. Returns whether it stepped.
  // Throws kInvalidArgument when called twice between two update(). Waits for the device once.
  bool step(torch::optim::Optimizer& optimizer);
  // As above, with `update` in place of optimizer.step().
  bool step(torch::optim::Optimizer& optimizer, const std::function<void()>& update);

  // Adapts the scale to the findings of the steps since the last update(), or, without a step,
  // of unscale_(). Throws kInvalidArgument when there was neither.
  void update();

  // Drops the record of an optimizer: its gradients were cleared, or the backward of the next scale() will add to them.
  // Gradients that still exist get the scale of that next call, if they were unscaled or have another scale. Cost: then one
  // pass over them.
  void forget(torch::optim::Optimizer& optimizer);

  [[nodiscard]] bool is_enabled() const noexcept { return options_.enabled; }
  [[nodiscard]] double get_scale() const;  // 1 when not enabled
  [[nodiscard]] std::int64_t growth_tracker() const;

  [[nodiscard]] StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    at::Tensor found_inf;  // 0-d float, not 0 when a gradient was not finite
  };

  void adapt(const at::Tensor& found_inf);

  GradScalerKwargs options_;
  std::int64_t hysteresis_left_;
  at::Tensor scale_;           // 0-d float on the device; never written to
  at::Tensor used_scale_;      // by the last scale()
  at::Tensor growth_tracker_;  // 0-d int32 on the device
  std::unordered_map<const torch::optim::Optimizer*, OptimizerState> states_;
};

}  // namespace accel
