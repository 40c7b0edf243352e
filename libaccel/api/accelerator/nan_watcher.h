// NanWatcher: what a NanWatch (accel/nan_watch.h) asks for, around each backward.
//
// A gradient that is not finite is told of once: again only after a backward whose gradients were all finite.
//
// Threads:  the thread that trains; its hooks run in LibTorch's thread of the backward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/nan_watch.h>

#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/interception/backward_hooks.h"
#include "libaccel/tensors/parameter_list.h"

namespace accel::detail {

class NanWatcher {
 public:
  // Throws kInvalidArgument for a window below 16 or a score below 0.
  NanWatcher(const NanWatch& options, const Preparation& prepared);
  NanWatcher(const NanWatcher&) = delete;
  NanWatcher& operator=(const NanWatcher&) = delete;

  // Holds no model and no parameter until the next begin().
  void let_go() noexcept;
  // loss: of this backward, neither divided nor scaled. backward: its number. counts: false for one of weight 0, which nobody looks at.
  void begin(const at::Tensor& loss, std::int64_t backward, bool counts);
  // With OnAnomaly::kThrow throws kNotFinite on all ranks, kPeerLost, kProcessGroup. Requires then: every rank calls it.
  void end();

 private:
  // The first one of a backward.
  struct Finding {
    std::int64_t parameter = 0;  // by its place; kLoss: the loss
    std::int64_t bad = 0;        // numbers that are not finite, of
    std::int64_t numbers = 0;
  };
  static constexpr std::int64_t kLoss = -1;

  void hook_parameters();
  void see(std::size_t parameter, const at::Tensor& gradient);
  void judge_loss(double loss);
  void tell(TrainingAnomaly anomaly) const;
  [[nodiscard]] TrainingAnomaly described(const Finding& finding, int rank) const;
  void throw_on_all_ranks() const;

  NanWatch options_;
  const Preparation& prepared_;
  std::vector<std::shared_ptr<ModelRuntime>> models_;  // whose parameters are hooked
  std::vector<NamedParameter> parameters_;
  std::vector<interception::GradientHook> hooks_;
  std::deque<double> losses_;
  std::int64_t backward_ = 0;
  double loss_ = 0;
  bool counts_ = true;
  std::optional<Finding> finding_;  // of this backward
  bool is_told_ = false;            // of a finding, since the last finite backward
};

}  // namespace accel::detail
