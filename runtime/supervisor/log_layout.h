// LogLayout: where the files of a job's log folder are. Pure names; nothing is created here.
//
//   <log_dir>/<job id>/attempt_<generation>/<local rank>/stdout.log    the bytes as written
//                                                        stderr.log
//                                                        error.json    TORCHELASTIC_ERROR_FILE
//                                                        stacks.log    of a rank that hung
//
// The same shape as torchrun's, except that the job id (unique for each launch) takes the place of
// its run id with a random ending.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace accel::supervisor {

enum class Stream { kOut = 0, kErr = 1 };

class LogLayout {
 public:
  LogLayout(const std::string& log_dir, std::string_view job_id)
      : job_folder_(std::filesystem::path(log_dir) / job_id) {}

  [[nodiscard]] const std::filesystem::path& job_folder() const noexcept { return job_folder_; }

  [[nodiscard]] std::filesystem::path worker_folder(int local_rank, int generation) const {
    return job_folder_ / ("attempt_" + std::to_string(generation)) / std::to_string(local_rank);
  }

  [[nodiscard]] std::filesystem::path stream_file(int local_rank,
                                                  int generation,
                                                  Stream stream) const {
    return worker_folder(local_rank, generation) /
           (stream == Stream::kOut ? "stdout.log" : "stderr.log");
  }

  [[nodiscard]] std::filesystem::path error_file(int local_rank, int generation) const {
    return worker_folder(local_rank, generation) / "error.json";
  }

  [[nodiscard]] std::filesystem::path stacks_file(int local_rank, int generation) const {
    return worker_folder(local_rank, generation) / "stacks.log";
  }

 private:
  std::filesystem::path job_folder_;
};

}  // namespace accel::supervisor
