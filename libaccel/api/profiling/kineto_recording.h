// KinetoRecording: LibTorch's profiler of this process, from making it ready to what it has recorded.
//
// There is one: Kineto keeps what it records for the whole process, and whom it records for in the thread that began.
//
// Threads:  start() and stop() from the same one.
// Source:   torch/autograd/profiler.py of PyTorch 2.11.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/profiler_kineto.h>

#include <accel/profile_kwargs.h>

namespace accel::profiling {

using Activities = std::set<torch::profiler::impl::ActivityType>;

// By their names; not set: all that this process has. `missing`: "cuda" was asked for, and there is none.
// Throws kInvalidArgument for a name that is not known here, and when none is left.
struct ChosenActivities {
  Activities types;
  bool is_cuda_missing = false;
};
[[nodiscard]] ChosenActivities activities_of(const std::optional<std::vector<std::string>>& names);

class KinetoRecording {
 public:
  // Throws as activities_of(), and kInvalidArgument while another one lives, or a profiler of LibTorch's own runs in this thread.
  KinetoRecording(const ProfileKwargs& kwargs, Activities activities);
  ~KinetoRecording();  // what is recorded then is lost
  KinetoRecording(const KinetoRecording&) = delete;
  KinetoRecording& operator=(const KinetoRecording&) = delete;

  void prepare();
  // metadata: names and JSON values for the trace. Requires: prepare() came before.
  void start(const std::vector<std::pair<std::string, std::string>>& metadata);
  void stop();
  // Makes way for another one; what was made ready and not recorded is thrown away. Once is enough.
  void end();

  [[nodiscard]] bool is_prepared() const noexcept { return is_prepared_; }
  [[nodiscard]] bool is_running() const noexcept { return is_running_; }
  // Of the last start() to stop(). Throws kInvalidArgument before there is any.
  [[nodiscard]] const torch::autograd::profiler::ProfilerResult& result() const;
  // Throws that, and kFileIo.
  void save(const std::filesystem::path& path);

 private:
  torch::profiler::impl::ProfilerConfig config_;
  Activities activities_;
  bool is_taken_ = true;  // it is the one of this process
  bool is_prepared_ = false;
  bool is_running_ = false;
  std::unique_ptr<torch::autograd::profiler::ProfilerResult> result_;
  std::filesystem::path saved_to_;  // Kineto writes a trace only once; later files are copies
};

}  // namespace accel::profiling
