// StepSpan: measures time in which the training thread does not compute. The launcher's report shows it as a part of each step
// (docs/guides/profiling.md).
//
//   const StepSpan span(StepPart::kInput);   // until its end
//
// If spans are nested, only the outermost counts.
//
// Threads:  any; only spans of the thread that made the Accelerator count.
// Cost:     two readings of the clock, 50 ns each on two loaded cores. Without ACCEL_STEP_TIMES one function call.
#pragma once

#include <cstdint>

#include <accel/export.h>

namespace accel::detail {

enum class StepPart : std::uint8_t {
  kInput,          // the next batch of a prepared loader
  kCommunication,  // waiting for other ranks, as far as computing does not hide it
  kIo,             // checkpoints and weights
  kWait,           // wait_for_everyone() and turns
};

class ACCEL_EXPORT StepSpan {
 public:
  explicit StepSpan(StepPart part) noexcept;
  ~StepSpan();
  StepSpan(const StepSpan&) = delete;
  StepSpan& operator=(const StepSpan&) = delete;

 private:
  StepPart part_;
  std::uint64_t begin_ns_ = 0;  // 0: this span does not count
};

}  // namespace accel::detail
