// NanWatch: reports the rank, the step and the parameter of the first gradient that is not finite, and jumps of the loss.
//
//   accel::Accelerator accelerator({.nan_watch = accel::NanWatch{.action = accel::OnAnomaly::kThrow}});
//
//   [RANK 3] backward 1041: the gradient of layers.7.weight has 12 of 4096 numbers that are not finite
//
// Gradients are checked before the ranks average them, in the order in which backward computes them. So the report names the rank
// and the parameter where the problem began, not those to which it spread. With fp16 and its gradient scaler infinite gradients are
// normal, and only the loss is checked.
//
// A jump is a loss far above the earlier ones: its robust z-score (loss - median) / (1.4826 MAD) over the last `window` finite
// losses, with a deviation of at least 1 % of the median's size, is above spike_score. At least 16 losses must be known.
//
// A micro-batch of weight 0 is not checked. If Lomo or AdaLomo steps in the backward, parameters have already stepped when it throws.
// kThrow is refused in reproducible training and with join_uneven_inputs(), because ranks make different numbers of backwards there.
//
// Cost:     nothing if it is off. If it is on: one pass over each gradient (a sum) and, if the loss is checked, reading its value;
//           both wait for the device. kThrow: one message of 32 bytes for each backward.
// Threads:  the thread that trains.
// Source:   tests/unit/libaccel/train/nan_watch_test.cc; robust score: Iglewicz and Hoaglin (1993).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace accel {

enum class OnAnomaly {
  kWarn,   // a line in the log, and in the launcher's report; training continues
  kThrow,  // backward() throws kNotFinite on all ranks, before any optimizer steps. Not for losses that jump: those are told
};

// A gradient that is not finite, or a loss that is not finite or jumps.
struct TrainingAnomaly {
  enum class Kind { kGradientNotFinite, kLossNotFinite, kLossSpike };
  Kind kind = Kind::kLossSpike;
  int rank = 0;
  std::int64_t backward = 0;  // its number, from 1; a restarted job continues the count
  std::string parameter;      // of a gradient
  double loss = 0;            // of a loss
  double score = 0;           // of a loss that jumps
  std::string text;           // all of it as a sentence
};

struct NanWatch {
  OnAnomaly action = OnAnomaly::kWarn;
  double spike_score = 10;  // 0: losses are not looked at
  int window = 64;          // losses; 16 or more
  // Called first, on the rank that found the anomaly.
  std::function<void(const TrainingAnomaly&)> on_anomaly;
};

}  // namespace accel
