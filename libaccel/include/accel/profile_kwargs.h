// ProfileKwargs: the options of a profiler (accel/profiler.h), with the names of HF Accelerate.
//
//   accel::Accelerator accelerator({.profile = {.record_shapes = true, .output_trace_dir = "trace"}});
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace accel {

class Profiler;

// Which steps are recorded. After skip_first steps the cycles begin. In a cycle the profiler is off for `wait` steps, records and
// discards `warmup` steps, and records `active` steps. Profiler::step() counts steps.
struct ProfileSchedule {
  int wait = 0;
  int warmup = 0;
  int active = 1;  // 1 or more
  int repeat = 0;  // cycles; 0: until the profiler ends
  int skip_first = 0;
};

struct ProfileKwargs {
  // "cpu", and "cuda", "xpu", "mtia", "hpu" if this process has such devices ("cuda" is always accepted, and skipped with a warning
  // without such a device). Not set: all that exist.
  std::optional<std::vector<std::string>> activities;
  std::optional<ProfileSchedule> schedule_option;  // not set: everything, from beginning to end
  // Called at the end of each cycle of the schedule, or without a schedule at the end, on the thread of the profiler.
  std::function<void(Profiler&)> on_trace_ready;
  bool record_shapes =
      false;  // of the operators' inputs; for key_averages({.group_by_input_shape = true})
  bool profile_memory = false;  // bytes that operators take and give back
  bool with_stack = false;      // source lines of TorchScript modules; C++ has no other ones
  bool with_flops =
      false;  // of convolutions, products of matrices, mul and add. Records shapes, too
  bool with_modules = false;  // the modules of TorchScript around each operator
  // The folder for the trace, profile_<process_index>.json; it is created if needed. Not set: no file.
  std::optional<std::string> output_trace_dir;
};

}  // namespace accel
