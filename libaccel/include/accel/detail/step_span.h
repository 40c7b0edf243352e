// StepSpan: a time of the training thread that is not computing, for the breakdown of steps in the launcher's report
// (docs/guides/profiling.md).
//
//   const StepSpan span(StepPart::kInput);   // until its end
//
// Of spans inside each other only the outermost counts.
//
// Threads:  any; only that of the thread which made the Accelerator counts.
// Cost:     two looks at the clock, 50 ns each on two loaded cores; a function call without ACCEL_STEP_TIMES.
#pragma once

#include <cstdint>

#include <accel/export.h>

namespace accel::detail {

enum class StepPart : std::uint8_t {
  kInput,          // the next batch of a prepared loader
  kCommunication,  // waiting for what other ranks send: what is not hidden behind computing
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
  std::uint64_t begin_ns_ = 0;  // 0: this one does not count
};

}  // namespace accel::detail
