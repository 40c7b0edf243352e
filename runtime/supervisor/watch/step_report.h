// StepReport: where the time of a worker's steps went, as the launcher's report says it.
//
// Pure. The times come from the worker and may be anything; parts beyond the total are shown as they are.
// Source:   docs/guides/profiling.md; tests/unit/supervisor/call_comparison_test.cc.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include <accel/channel.h>

namespace accel::supervisor {

struct StepPartTime {
  std::string_view name;   // for people
  std::string_view label;  // one word
  double nanoseconds = 0;
};

// Computing is what is left of the total, at least 0.
[[nodiscard]] std::array<StepPartTime, 5> parts_of(const StepTimes& times);

// "400 steps of 12.1 ms: compute 80.0 %, exposed communication 10.0 %, input 5.0 %, I/O 3.0 %, wait 2.0 %".
[[nodiscard]] std::string step_times_text(const StepTimes& times);

}  // namespace accel::supervisor
