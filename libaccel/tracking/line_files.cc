#include "libaccel/tracking/line_files.h"

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>

#include "libaccel/tracking/value_text.h"
#include "runtime/text/csv_row.h"

namespace accel::tracking {
namespace {

using Cells = std::vector<std::pair<std::string, std::string>>;

std::string double_json(double value) {
  return json_text(TrackerValue(value));
}

void add_cells(const std::string& prefix, const TrackerDict& values, Cells& cells) {
  for (const auto& [name, value] : values) {
    if (value.dictionary() != nullptr) {
      add_cells(prefix + name + "/", *value.dictionary(), cells);
    } else {
      cells.emplace_back(prefix + name, csv_cell(value));
    }
  }
}

std::string file_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace

void JsonLines::write(const TrackEntry& entry) {
  const std::string time = "\"time\":" + double_json(entry.wall_time);
  if (entry.kind == EntryKind::kConfig) {
    file_.append("{" + time + ",\"config\":" + json_text(entry.values) + "}\n");
  } else if (entry.kind == EntryKind::kLog) {
    std::string line = "{";
    if (entry.step) line += "\"step\":" + std::to_string(*entry.step) + ",";
    line += time;
    if (!entry.values.empty()) line += "," + json_members(entry.values);
    file_.append(line + "}\n");
  }
}

CsvRows::CsvRows(std::filesystem::path path)
    : path_(std::move(path)),
      rows_(path_, FileForm::kLines),
      config_(path_.parent_path() / "config.json", FileForm::kLines) {
  const std::string before = file_text(path_);
  std::string_view rows = before;
  columns_ = before.empty() ? std::vector<std::string>{"step", "time"} : take_csv_row(rows).cells;
  header_is_stale_ = before.empty();
}

std::size_t CsvRows::column_of(const std::string& name) {
  const auto found = std::ranges::find(columns_, name);
  if (found == columns_.end()) {
    columns_.push_back(name);
    header_is_stale_ = true;
    return columns_.size() - 1;
  }
  return static_cast<std::size_t>(found - columns_.begin());
}

void CsvRows::write(const TrackEntry& entry) {
  if (entry.kind == EntryKind::kConfig) return config_.append(json_text(entry.values) + "\n");
  if (entry.kind != EntryKind::kLog) return;
  Cells named{{"step", entry.step ? std::to_string(*entry.step) : ""},
              {"time", double_json(entry.wall_time)}};
  add_cells("", entry.values, named);
  std::vector<std::string> row(columns_.size());
  for (auto& [name, cell] : named) {
    const std::size_t column = column_of(name);
    row.resize(std::max(row.size(), column + 1));
    row[column] = std::move(cell);
  }
  for (std::size_t i = 0; i < row.size(); ++i) held_rows_ += (i == 0 ? "" : ",") + row[i];
  held_rows_ += "\n";
}

int CsvRows::replace_header() {
  const std::string before = file_text(path_);
  // Where the first line ends: names with line ends in them are quoted, and a quote is never open at the end of a row.
  std::size_t end = 0;
  for (bool is_quoted = false; end < before.size(); ++end) {
    if (before[end] == '"') is_quoted = !is_quoted;
    if (before[end] == '\n' && !is_quoted) break;
  }
  std::string text;
  for (const std::string& column : columns_) text += (text.empty() ? "" : ",") + csv_quoted(column);
  text += "\n" + (end < before.size() ? before.substr(end + 1) : "");
  const std::filesystem::path fresh = path_.string() + ".new";
  std::error_code failure;
  std::filesystem::remove(fresh, failure);
  AppendFile file(fresh);
  file.append(text);
  if (const Backlog backlog = file.drain(); backlog.bytes > 0) return backlog.error;
  std::filesystem::rename(fresh, path_, failure);
  rows_.close();
  return failure.value();
}

Backlog CsvRows::drain() {
  Backlog all = config_.drain();
  if (Backlog rows = rows_.drain(); rows.bytes > 0) {
    rows.bytes += all.bytes + held_rows_.size();
    return rows;
  }
  if (header_is_stale_) {
    if (const int error = replace_header(); error != 0)
      return {.bytes = all.bytes + held_rows_.size() + 1, .error = error, .path = path_.string()};
    header_is_stale_ = false;
  }
  rows_.append(held_rows_);
  held_rows_.clear();
  const Backlog rows = rows_.drain();
  if (rows.bytes > 0) all.error = rows.error, all.path = rows.path;
  all.bytes += rows.bytes;
  return all;
}

}  // namespace accel::tracking
