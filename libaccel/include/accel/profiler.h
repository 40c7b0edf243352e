// Profiler: measures the time and memory of operators in this process, between two points of a program.
//
//   accel::Profiler profiler = accelerator.profile({.with_flops = true});
//   train();
//   profiler.stop();
//   accelerator.print(profiler.key_averages().table({.sort_by = "cpu_time_total", .row_limit = 10}));
//
// LibTorch's profiler (Kineto) records the events: operators, backward functions, and scopes of the program
// (RECORD_USER_SCOPE). Names, numbers and the table equal torch.profiler's. With a schedule, call step() at the end of each
// training step.
//
// Threads:  call it from the thread that made it. It records that thread and the threads that LibTorch starts for it, no others.
// Cost:     nothing without a profiler. While one records, about 1 us for each operator, and 300 bytes until it ends.
// Source:   torch/autograd/profiler_util.py and torch/profiler/profiler.py of PyTorch 2.11; tests/peer/profiler.py.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <accel/export.h>
#include <accel/profile_kwargs.h>

namespace accel {

// All calls with one name, or with one name and the same input shapes. Times are in microseconds. "self" excludes the operators
// that ran inside.
struct KeyAverage {
  std::string key;
  std::int64_t count = 0;
  bool is_async = false;  // it ends on another thread than where it began
  double cpu_time_total = 0;
  double self_cpu_time_total = 0;
  std::int64_t cpu_memory_usage = 0;  // bytes allocated minus bytes freed
  std::int64_t self_cpu_memory_usage = 0;
  std::int64_t flops = 0;
  std::string input_shapes;  // "[[8, 3], []]"; empty unless grouped by shapes

  [[nodiscard]] double cpu_time() const noexcept {  // of one call
    return count == 0 ? 0 : cpu_time_total / static_cast<double>(count);
  }
};

struct ProfileTableOptions {
  // "count", "cpu_time", "cpu_time_total", "self_cpu_time_total", "cpu_memory_usage", "self_cpu_memory_usage" or "flops":
  // the largest first. Empty: in the order of the first call.
  std::string sort_by;
  int row_limit = 100;  // -1: all
};

// The events of a profile, added up for each operator.
class ACCEL_EXPORT KeyAverages {
 public:
  [[nodiscard]] const std::vector<KeyAverage>& events() const noexcept { return events_; }
  [[nodiscard]] auto begin() const noexcept { return events_.begin(); }
  [[nodiscard]] auto end() const noexcept { return events_.end(); }
  [[nodiscard]] double self_cpu_time_total() const noexcept;
  // Throws kInvalidArgument for an unknown sort_by.
  [[nodiscard]] std::string table(const ProfileTableOptions& options = {}) const;

 private:
  friend class Profiler;
  std::vector<KeyAverage> events_;
  bool has_memory_ = false;
  bool has_flops_ = false;
};

struct KeyAveragesOptions {
  bool group_by_input_shape = false;  // needs ProfileKwargs::record_shapes
};

class ACCEL_EXPORT Profiler {
 public:
  // Destruction calls stop() and logs its errors. While an exception unwinds the stack, no file is written.
  ~Profiler();
  Profiler(Profiler&&) noexcept;
  Profiler& operator=(Profiler&&) = delete;

  // Begins the next step of the schedule. Exceptions of on_trace_ready pass through.
  void step();
  [[nodiscard]] std::int64_t step_num() const noexcept;

  // Stops recording. A second call does nothing. With output_trace_dir it writes the trace and waits for the other ranks.
  // Throws kFileIo, kPeerLost, kProcessGroup; exceptions of on_trace_ready pass through. Requires: with output_trace_dir every rank
  // calls it.
  void stop();

  // The averages of the last recording: with a schedule, of its last cycle. Throws kInvalidArgument if nothing was recorded yet.
  [[nodiscard]] KeyAverages key_averages(const KeyAveragesOptions& options = {}) const;
  // Writes the last recording for chrome://tracing or Perfetto. Kineto writes a trace only once, so later files are copies of the
  // first. Throws kInvalidArgument if nothing was recorded yet; kFileIo, also if the first file is gone.
  void export_chrome_trace(const std::filesystem::path& path) const;

 private:
  friend class Accelerator;
  struct Impl;
  explicit Profiler(const ProfileKwargs& kwargs);

  std::unique_ptr<Impl> impl_;
};

}  // namespace accel
