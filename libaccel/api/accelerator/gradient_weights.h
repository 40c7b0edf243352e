// GradientWeights: the mean of gradients by the weights of their micro-batches.
//
// A loss is multiplied by weight / unit before its backward, and the gradients by unit / sum(weights) at the end of the
// accumulation: exactly the gradient of the mean over all that the weights count. The unit is a power of two near the first weight of
// rank 0, so that scaled gradients in fp16 are as large as without weights; it rounds nothing.
//
// Within join_uneven_inputs() a rank that has run out of batches takes part with weights of 0; rank 0 may be that one, so the greatest
// first weight makes the unit there.
//
// A loss of weight 0 may be NaN, being a mean of nothing: its gradients are replaced by zeros before they are added up.
//
// Threads:  the thread that trains; every rank makes the same calls.
// Errors    throws kPeerLost, kProcessGroup.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include <accel/micro_batches.h>

#include "libaccel/api/accelerator/preparation.h"
#include "libaccel/interception/backward_hooks.h"

namespace accel::detail {

class GradientWeights {
 public:
  explicit GradientWeights(const Preparation& prepared) : prepared_(prepared) {}

  // Throws as Accelerator::backward().
  void check(std::optional<double> weight);
  // What the loss is multiplied by. Requires: check().
  [[nodiscard]] double begin(double weight);
  // After its backward. micro_batch: of all ranks', in reproducible training: weights are then added up in their order.
  void add(std::optional<double> weight, std::optional<std::int64_t> micro_batch);
  // The accumulation is over: gradients become the mean. run: of reproducible training, where they are the sum over all ranks;
  // else they are the mean of the ranks' sums.
  void end(const std::optional<MicroBatches>& run);
  void begin_anew() noexcept;

  // For a rank that has joined: its part of begin(), and of end().
  void take_part_in_unit() { agree_on_unit(0); }
  void take_part_in_end();

 private:
  enum class Kind { kNone, kWeighted, kUnweighted };

  void agree_on_unit(double weight);
  void clear_what_comes();
  [[nodiscard]] double total(const std::optional<MicroBatches>& run) const;
  [[nodiscard]] std::vector<at::Tensor> gradients() const;

  const Preparation& prepared_;
  Kind kind_ = Kind::kNone;  // of the micro-batches of the accumulation
  double unit_ = 0;          // 0: not known yet
  std::vector<double> weights_;
  std::vector<std::int64_t> places_;
  std::vector<interception::GradientHook> clearing_;  // during a backward of weight 0
};

}  // namespace accel::detail
