// LogLayout: where the files of a job's log folder are. Pure names; nothing is created here.
//
//   <log_dir>/<job id>/attempt_<generation>/<local rank>/stdout.log    the bytes as written
//                                                        stderr.log
//                                                        error.json    TORCHELASTIC_ERROR_FILE
//                                                        stacks.log    of a rank that hung
//                                    filtered_stdout.log               lines that were asked for, of all ranks
//                                    filtered_stderr.log
//
// With rotation a full stdout.log becomes stdout.log.<o>, where o is the place of its first byte in the stream, and
// stdout.log goes on behind it: so every byte has a number that stays, whatever was deleted before it.
//
// The same shape as torchrun's, except that the job id (unique for each launch) takes the place of
// its run id with a random ending.
#pragma once

#include <charconv>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace accel::supervisor {

enum class Stream { kOut = 0, kErr = 1 };

// "stdout.log.4096": what a file with this name is called once it is full.
[[nodiscard]] inline std::string rotated_name(const std::string& name, std::uint64_t start) {
  return name + "." + std::to_string(start);
}

// The other way round; std::nullopt when `candidate` is no rotated file of `name`.
[[nodiscard]] inline std::optional<std::uint64_t> start_of_rotated(std::string_view name,
                                                                   std::string_view candidate) {
  if (candidate.size() < name.size() + 2 || !candidate.starts_with(name) ||
      candidate[name.size()] != '.') {
    return std::nullopt;
  }
  const std::string_view digits = candidate.substr(name.size() + 1);
  std::uint64_t start = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), start);
  if (error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return start;
}

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

  // Lines of all workers that --duplicate_stdout_filters, --duplicate_stderr_filters name.
  [[nodiscard]] std::filesystem::path filtered_file(int generation, Stream stream) const {
    return worker_folder(0, generation).parent_path() /
           (stream == Stream::kOut ? "filtered_stdout.log" : "filtered_stderr.log");
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
