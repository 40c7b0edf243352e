// MetricFile: the numbers of a run, one row for each time that they are written.
//
//   metrics.jsonl   {"step":10,"epoch":0,"loss":4.5,...} a line
//   metrics.csv     a column for each name that a row may have
//
// A row is on its way to the disk when write() returns: a run that is killed loses none. A run that goes on appends, and rows of
// steps that it does anew stand there twice.
//
// Threads:  one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/unique_fd.h"

namespace accel::train {

using MetricRow = std::vector<std::pair<std::string, std::variant<std::int64_t, double>>>;

class MetricFile {
 public:
  // Makes the folder and the file; keeps what is in it when `appends`. columns: the names of all rows, in the order of a table.
  // Throws Error kFileIo with errno.
  MetricFile(const std::filesystem::path& path, std::vector<std::string> columns, bool appends);

  // Throws Error kFileIo, kDiskFull.
  void write(const MetricRow& row);

 private:
  void write_text(const std::string& text);
  [[nodiscard]] std::string csv_line(const MetricRow& row) const;

  std::filesystem::path path_;
  UniqueFd file_;
  bool is_csv_;
  std::vector<std::string> columns_;
};

// Shortest text that reads back as the same number; null for what JSON has no number for.
[[nodiscard]] std::string metric_text(double value);

}  // namespace accel::train
