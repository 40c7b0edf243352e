// Profiler: what the operators of this process cost, between two points of a program.
//
//   accel::Profiler profiler = accelerator.profile({.with_flops = true});
//   train();
//   profiler.stop();
//   accelerator.print(profiler.key_averages().table({.sort_by = "cpu_time_total", .row_limit = 10}));
//
// The events are those of LibTorch's own profiler (Kineto): operators, backward functions, and scopes of the program
// (RECORD_USER_SCOPE). Names, numbers and table are those of torch.profiler. With a schedule, call step() at the end of each
// step of training.
//
// Threads:  the one that made it. Events of threads that LibTorch starts for it are recorded, those of other threads not.
// Cost:     nothing where no profiler lives. While one records, about 1 us for each operator and 300 bytes until it ends.
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

// Calls of one name, or of one name with the same shapes. Times are in microseconds. "Self": without the operators inside.
struct KeyAverage {
  std::string key;
  std::int64_t count = 0;
  bool is_async = false;  // ends in another thread than it begins
  double cpu_time_total = 0;
  double self_cpu_time_total = 0;
  std::int64_t cpu_memory_usage = 0;  // bytes taken minus bytes given back
  std::int64_t self_cpu_memory_usage = 0;
  std::int64_t flops = 0;
  std::string input_shapes;  // "[[8, 3], []]"; empty unless grouped by shapes

  [[nodiscard]] double cpu_time() const noexcept {  // of one call
    return count == 0 ? 0 : cpu_time_total / static_cast<double>(count);
  }
};

struct ProfileTableOptions {
  // "count", "cpu_time", "cpu_time_total", "self_cpu_time_total", "cpu_memory_usage", "self_cpu_memory_usage" or "flops":
  // largest first. Empty: in order of their first call.
  std::string sort_by;
  int row_limit = 100;  // -1: all
};

// The events of a profile, those of one operator together.
class ACCEL_EXPORT KeyAverages {
 public:
  [[nodiscard]] const std::vector<KeyAverage>& events() const noexcept { return events_; }
  [[nodiscard]] auto begin() const noexcept { return events_.begin(); }
  [[nodiscard]] auto end() const noexcept { return events_.end(); }
  [[nodiscard]] double self_cpu_time_total() const noexcept;
  // Throws kInvalidArgument for an order that there is not.
  [[nodiscard]] std::string table(const ProfileTableOptions& options = {}) const;

 private:
  friend class Profiler;
  std::vector<KeyAverage> events_;
  bool has_memory_ = false;
  bool has_flops_ = false;
};

struct KeyAveragesOptions {
  bool group_by_input_shape = false;  // wants ProfileKwargs::record_shapes
};

class ACCEL_EXPORT Profiler {
 public:
  // Destruction stops it, as stop() does, and logs errors. After an exception no file is written.
  ~Profiler();
  Profiler(Profiler&&) noexcept;
  Profiler& operator=(Profiler&&) = delete;

  // The next step of the schedule begins. Throws what on_trace_ready throws.
  void step();
  [[nodiscard]] std::int64_t step_num() const noexcept;

  // Stops recording, once: later calls do nothing. With output_trace_dir it writes the trace, and waits for the other ranks.
  // Throws kFileIo, kPeerLost, kProcessGroup, and what on_trace_ready throws. Requires: with output_trace_dir every rank calls it.
  void stop();

  // Of what was recorded last: of the last cycle of a schedule. Throws kInvalidArgument before anything was.
  [[nodiscard]] KeyAverages key_averages(const KeyAveragesOptions& options = {}) const;
  // Writes the same for chrome://tracing or Perfetto. Throws kInvalidArgument before anything was recorded, kFileIo; also when it
  // was written before, and that file is gone: Kineto writes a trace only once, later files are copies.
  void export_chrome_trace(const std::filesystem::path& path) const;

 private:
  friend class Accelerator;
  struct Impl;
  explicit Profiler(const ProfileKwargs& kwargs);

  std::unique_ptr<Impl> impl_;
};

}  // namespace accel
