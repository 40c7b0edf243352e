#include "libaccel/engine/process/step_clock.h"

#include <ctime>

#include <accel/channel.h>
#include <accel/detail/step_span.h>

#include "libaccel/engine/process/supervisor_link.h"

namespace accel::detail {
namespace {

struct StepClock {
  bool is_on = false;
  bool is_inside = false;  // a span
  std::uint64_t begin_ns = 0;
  StepTimes times;
};
thread_local StepClock t_clock;

std::uint64_t now_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t& part_time(StepTimes& times, StepPart part) noexcept {
  switch (part) {
    case StepPart::kInput:
      return times.input_ns;
    case StepPart::kCommunication:
      return times.communication_ns;
    case StepPart::kIo:
      return times.io_ns;
    case StepPart::kWait:
      break;
  }
  return times.wait_ns;
}

}  // namespace

void start_step_clock(const EnvLookup& env) {
  t_clock = {};
  t_clock.is_on = supervisor_channel() != nullptr && env("ACCEL_STEP_TIMES") == "1";
}

void publish_step_times(bool is_step) noexcept {
  if (!t_clock.is_on) return;
  WorkerChannel* const channel = supervisor_channel();
  if (channel == nullptr) return;
  const std::uint64_t now = now_ns();
  if (t_clock.begin_ns == 0) {
    // What came before the end of the first backward is the start of the program.
    t_clock.begin_ns = now;
    t_clock.times = {};
    return;
  }
  t_clock.times.steps += is_step ? 1 : 0;
  t_clock.times.total_ns = now - t_clock.begin_ns;
  channel->step_times(t_clock.times);
}

StepSpan::StepSpan(StepPart part) noexcept : part_(part) {
  if (!t_clock.is_on || t_clock.is_inside) return;
  t_clock.is_inside = true;
  begin_ns_ = now_ns();
}

StepSpan::~StepSpan() {
  if (begin_ns_ == 0) return;
  part_time(t_clock.times, part_) += now_ns() - begin_ns_;
  t_clock.is_inside = false;
}

}  // namespace accel::detail
