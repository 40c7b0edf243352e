// NanWatch: names the rank, the step and the parameter of the first gradient that is not finite, and losses that jump.
//
//   accel::Accelerator accelerator({.nan_watch = accel::NanWatch{.action = accel::OnAnomaly::kThrow}});
//
//   [RANK 3] backward 1041: the gradient of layers.7.weight has 12 of 4096 numbers that are not finite
//
// Gradients are looked at before the ranks average them, in the order in which backward makes them: so the rank and the operator
// where it began are named, and not all that it spread to. With fp16 and its gradient scaler infinite gradients are no anomaly;
// only the loss is watched then.
//
// A loss jumps when it is far above the ones before it: the robust z-score (loss - median) / (1.4826 MAD) of the last `window`
// finite losses, with a deviation of at least 1 % of the median's size, is above spike_score. 16 losses must be known.
//
// A micro-batch of weight 0 is not looked at. A backward in which Lomo or AdaLomo steps has stepped when it throws. kThrow is
// refused in reproducible training and with join_uneven_inputs(): ranks make different numbers of backwards there.
//
// Cost:     nothing when it is off. On: one pass over each gradient (a sum) and, where the loss is watched, its value; a device is
//           waited for in each. kThrow: one message of 32 bytes for each backward.
// Threads:  the thread that trains.
// Source:   tests/unit/libaccel/train/nan_watch_test.cc; robust score: Iglewicz and Hoaglin (1993).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace accel {

enum class OnAnomaly {
  kWarn,   // a line in the log, and in the launcher's report; training goes on
  kThrow,  // backward() throws kNotFinite on all ranks, before any optimizer steps. Not for losses that jump: those are told
};

// A gradient that is no number, or a loss that is none or jumps.
struct TrainingAnomaly {
  enum class Kind { kGradientNotFinite, kLossNotFinite, kLossSpike };
  Kind kind = Kind::kLossSpike;
  int rank = 0;
  std::int64_t backward = 0;  // its number, from 1; a restarted job goes on counting
  std::string parameter;      // of a gradient
  double loss = 0;            // of a loss
  double score = 0;           // of a loss that jumps
  std::string text;           // all of it as a sentence
};

struct NanWatch {
  OnAnomaly action = OnAnomaly::kWarn;
  double spike_score = 10;  // 0: losses are not looked at
  int window = 64;          // losses; 16 or more
  // Called on the rank that found it, before anything else is done.
  std::function<void(const TrainingAnomaly&)> on_anomaly;
};

}  // namespace accel
