// RunLog: the numbers of a run, from the files that trackers write.
//
// log.jsonl     {"step":3,"time":1767225600.5,"loss":0.5} a line; dictionaries inside become names as "outer/inner"
// log.csv       step,time,loss,... and rows, which may be shorter than the first one
// events.out.tfevents.*   event files of TensorBoard, with simple_value summaries; all of a folder are one run
//
// A file may be written while it is read: an unfinished last line or record is left out, silently. What is broken before the end is
// counted. Values that are no numbers (texts, lists) are left out; null, nan and infinities are gaps of a curve.
//
// Threads:  any one; reads files.
// Cost:     one file in memory, of at most `most_bytes`, and 24 bytes for each number.
// Source:   docs/guides/tracking.md; tests/unit/tracking/run_log_test.cc reads what libaccel's trackers write.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <accel/result.h>

namespace accel::launcher {

inline constexpr std::size_t kMostRunBytes = std::size_t{1} << 30;  // of a file

struct RunPoint {
  double step = 0;   // as it was logged; else one more than the metric's last
  double time = 0;   // seconds since 1970; NaN: the file does not say
  double value = 0;  // NaN: a gap
};

struct RunLog {
  std::string name;  // as it is shown: the path, without the file's name where that says nothing
  std::map<std::string, std::vector<RunPoint>> metrics;  // points in the order of the file
  std::size_t num_broken = 0;                            // lines or records that could not be read

  [[nodiscard]] bool empty() const noexcept { return metrics.empty(); }
};

// The runs of a path that a user names: a file of one of the kinds above (of another name: by its ending), or a folder with such
// files, in it or below. Of one folder log.jsonl is read before log.csv, and that before event files, for they hold the same. Event
// files below a folder with lines are not looked for. Folders without numbers are left out, a named file is not.
// Sorted by name. Errors  kFileIo: not there, unreadable, of an unknown kind, larger than `most_bytes`, or a folder without any.
[[nodiscard]] Result<std::vector<RunLog>> read_runs(const std::string& path,
                                                    std::size_t most_bytes = kMostRunBytes);

// Of one look at files that others write meanwhile.
struct RunLimits {
  std::size_t file_bytes = std::size_t{64} << 20;
  std::size_t total_bytes = std::size_t{128} << 20;
  std::size_t runs = 100;
};
struct NewestRuns {
  std::vector<RunLog> runs;  // with numbers, sorted by name
  std::string notice;        // what is not read, and why; empty: all is
};
// The same runs, those first that were written last. What would be an error of read_runs(), or is beyond a limit, is left out and
// told in the notice.
[[nodiscard]] NewestRuns read_newest_runs(const std::string& path, const RunLimits& limits);

}  // namespace accel::launcher
