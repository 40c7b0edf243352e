// LineFiles: the entries of a run as lines of JSON, and as rows of CSV.
//
// Source:   RFC 8259, RFC 4180. docs/guides/tracking.md shows both.
#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "libaccel/tracking/track_sink.h"

namespace accel::tracking {

// {"step":3,"time":1767225600.5,"loss":0.5} for each entry, {"time":...,"config":{...}} for a configuration.
class JsonLines final : public TrackSink {
 public:
  explicit JsonLines(std::filesystem::path path) : file_(std::move(path), FileForm::kLines) {}

  void write(const TrackEntry& entry) override;
  Backlog drain() override { return file_.drain(); }

 private:
  AppendFile file_;
};

// step,time,loss,... A new name is a column at the end: the rows before have fewer cells, which readers take as empty ones; the
// file is replaced by one with the new first line.
class CsvRows final : public TrackSink {
 public:
  explicit CsvRows(std::filesystem::path path);

  void write(const TrackEntry& entry) override;
  Backlog drain() override;

 private:
  [[nodiscard]] std::size_t column_of(const std::string& name);
  // 0 or an errno.
  [[nodiscard]] int replace_header();

  std::filesystem::path path_;
  AppendFile rows_;
  AppendFile config_;
  std::vector<std::string> columns_;
  std::string held_rows_;         // until the header is there
  bool header_is_stale_ = false;  // columns_ is ahead of the file
};

}  // namespace accel::tracking
