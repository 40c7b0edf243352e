#include "launcher/curves/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/curves/event_records.h"
#include "runtime/printable.h"
#include "runtime/text/csv_row.h"
#include "runtime/text/folder_names.h"
#include "runtime/text/number_text.h"
#include "runtime/text/text_file.h"

namespace accel::launcher {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kNoNumber = std::numeric_limits<double>::quiet_NaN();
constexpr std::string_view kJsonName = "log.jsonl";
constexpr std::string_view kCsvName = "log.csv";
constexpr std::string_view kEventWord = "tfevents";

enum class LogKind { kNone, kJsonLines, kCsv, kEvents };

LogKind kind_of(const std::string& name) {
  if (name.ends_with(".jsonl")) return LogKind::kJsonLines;
  if (name.ends_with(".csv")) return LogKind::kCsv;
  return name.find(kEventWord) != std::string::npos ? LogKind::kEvents : LogKind::kNone;
}

void add_point(
    RunLog& run, const std::string& metric, std::optional<double> step, double time, double value) {
  std::vector<RunPoint>& points = run.metrics[metric];
  const double next = points.empty() ? 0 : points.back().step + 1;
  points.push_back({step.value_or(next), time, std::isfinite(value) ? value : kNoNumber});
}

// The words with which Python's json module writes what JSON has no number for become null.
std::string without_python_words(std::string_view line) {
  std::string text;
  bool is_quoted = false;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (!is_quoted) {
      const auto at_word = [&](std::string_view word) { return line.substr(i).starts_with(word); };
      const std::string_view word = at_word("NaN")         ? "NaN"
                                    : at_word("-Infinity") ? "-Infinity"
                                    : at_word("Infinity")  ? "Infinity"
                                                           : "";
      if (!word.empty()) {
        text += "null";
        i += word.size() - 1;
        continue;
      }
    }
    const bool is_escape = is_quoted && line[i] == '\\' && i + 1 < line.size();
    if (line[i] == '"') is_quoted = !is_quoted;
    text += line[i];
    if (is_escape) text += line[++i];
  }
  return text;
}

json parsed_line(std::string_view line) {
  json entry = json::parse(line, nullptr, false);
  if (entry.is_discarded()) entry = json::parse(without_python_words(line), nullptr, false);
  return entry;  // not copied: that is recursive, and a line may be deep
}

std::optional<double> number_in(const json& entry, const char* name) {
  const auto found = entry.find(name);
  if (found == entry.end() || !found->is_number()) return std::nullopt;
  return found->get<double>();
}

void add_members(RunLog& run,
                 const std::string& prefix,
                 const json& members,
                 std::optional<double> step,
                 double time,
                 int depth = 0) {
  constexpr int kDeepestMember = 16;
  if (depth > kDeepestMember) return;
  for (const auto& [name, value] : members.items()) {
    if (depth == 0 && (name == "step" || name == "time")) continue;
    const std::string metric = prefix + name;
    if (value.is_object()) {
      add_members(run, metric + "/", value, step, time, depth + 1);
    } else if (value.is_number()) {
      add_point(run, metric, step, time, value.get<double>());
    } else if (value.is_boolean()) {
      add_point(run, metric, step, time, value.get<bool>() ? 1 : 0);
    } else if (value.is_null()) {
      add_point(run, metric, step, time, kNoNumber);
    }
  }
}

// {"time":...,"config":{...}}, which init_trackers() writes.
bool is_configuration(const json& entry) {
  const auto config = entry.find("config");
  return config != entry.end() && config->is_object() && entry.size() == 1 + entry.count("time");
}

void add_json_line(RunLog& run, std::string_view line, bool has_end) {
  if (line.find_first_not_of(" \t\r") == std::string_view::npos) return;
  const json entry = parsed_line(line);
  if (!entry.is_object()) {
    if (has_end) ++run.num_broken;
    return;
  }
  if (is_configuration(entry)) return;
  add_members(
      run, "", entry, number_in(entry, "step"), number_in(entry, "time").value_or(kNoNumber));
}

void add_json_lines(RunLog& run, std::string_view text) {
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const bool has_end = end != std::string_view::npos;
    add_json_line(run, text.substr(0, end), has_end);
    text.remove_prefix(has_end ? end + 1 : text.size());
  }
}

void add_csv_row(RunLog& run,
                 const std::vector<std::string>& columns,
                 const std::vector<std::string>& cells) {
  if (cells.size() == 1 && cells.front().empty()) return;
  if (cells.size() > columns.size()) {
    ++run.num_broken;
    return;
  }
  std::optional<double> step;
  double time = kNoNumber;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (columns[i] == "step") step = signed_number<double>(cells[i]);
    if (columns[i] == "time") time = signed_number<double>(cells[i]).value_or(kNoNumber);
  }
  if (step && !std::isfinite(*step)) step.reset();
  if (!std::isfinite(time)) time = kNoNumber;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    if (columns[i] == "step" || columns[i] == "time") continue;
    const auto value = signed_number<double>(cells[i]);
    if (value) add_point(run, columns[i], step, time, *value);
  }
}

void add_csv_rows(RunLog& run, std::string_view text) {
  const CsvRow columns = take_csv_row(text);
  while (!text.empty()) {
    const CsvRow row = take_csv_row(text);
    if (row.has_end) add_csv_row(run, columns.cells, row.cells);
  }
}

void add_events(RunLog& run, std::string_view file) {
  EventScalars events = event_scalars(file);
  if (events.is_broken) ++run.num_broken;
  for (const EventScalar& event : events.scalars)
    add_point(run, event.tag, static_cast<double>(event.step), event.wall_time, event.value);
}

Error run_error(const std::string& message, const std::string& remedy) {
  return Error(ErrorCode::kFileIo, message, remedy);
}

Result<void> add_file(RunLog& run, const fs::path& path, LogKind kind, std::size_t most_bytes) {
  const auto text = read_text_file(path.string(), most_bytes, "the tracking file");
  if (!text) return run_error(text.error().message(), "name a file that a tracker writes");
  if (kind == LogKind::kJsonLines) add_json_lines(run, *text);
  if (kind == LogKind::kCsv) add_csv_rows(run, *text);
  if (kind == LogKind::kEvents) add_events(run, *text);
  return {};
}

// What is read of a folder: one file of lines, or all event files by name, which begins with their time.
struct FolderFiles {
  LogKind kind = LogKind::kNone;
  std::vector<std::string> names;
};

FolderFiles tracked_files(const fs::path& folder, const std::vector<std::string>& names) {
  const auto is_file = [&](std::string_view name) {
    std::error_code ignored;
    return fs::is_regular_file(folder / name, ignored);
  };
  if (is_file(kJsonName)) return {LogKind::kJsonLines, {std::string(kJsonName)}};
  if (is_file(kCsvName)) return {LogKind::kCsv, {std::string(kCsvName)}};
  FolderFiles files;
  for (const std::string& name : names) {
    if (kind_of(name) == LogKind::kEvents && is_file(name)) files.names.push_back(name);
  }
  if (!files.names.empty()) files.kind = LogKind::kEvents;
  return files;
}

Result<void> add_folder(const fs::path& folder,
                        bool wants_events,
                        int depth,
                        std::size_t most_bytes,
                        std::vector<RunLog>& runs) {
  constexpr int kDeepest = 8;
  std::error_code error;
  const std::vector<std::string> names = names_in(folder, error);
  if (error && depth == 0)
    return run_error(
        "cannot read the folder " + printable(folder.string()) + ": " + error.message(),
        "check the path and its rights");
  const FolderFiles files = tracked_files(folder, names);
  if (files.kind != LogKind::kNone && (wants_events || files.kind != LogKind::kEvents)) {
    RunLog run;
    run.name = folder.string();
    for (const std::string& name : files.names) {
      if (auto added = add_file(run, folder / name, files.kind, most_bytes); !added) return added;
    }
    if (!run.empty()) runs.push_back(std::move(run));
  }
  const bool has_lines = files.kind == LogKind::kJsonLines || files.kind == LogKind::kCsv;
  for (const std::string& name : names) {
    std::error_code ignored;
    const fs::path inner = folder / name;
    const bool is_folder = fs::is_directory(fs::symlink_status(inner, ignored));
    if (!is_folder || depth == kDeepest) continue;
    if (auto added = add_folder(inner, wants_events && !has_lines, depth + 1, most_bytes, runs);
        !added)
      return added;
  }
  return {};
}

Result<std::vector<RunLog>> runs_below(const std::string& path, std::size_t most_bytes) {
  std::vector<RunLog> runs;
  const bool has_slash = path.size() > 1 && path.ends_with('/');
  const fs::path folder = has_slash ? fs::path(path).parent_path() : fs::path(path);
  if (auto added = add_folder(folder, true, 0, most_bytes, runs); !added)
    return std::move(added).error();
  if (runs.empty())
    return run_error("no numbers of a run in " + printable(path) + " or below",
                     "name a folder with log.jsonl, log.csv or events.out.tfevents.* in it; "
                     "docs/guides/tracking.md says how trackers write them");
  std::ranges::sort(runs, {}, &RunLog::name);
  return runs;
}

// "runs/a" of "runs/a/log.jsonl".
std::string name_of_file(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool says_nothing =
      name == kJsonName || name == kCsvName || kind_of(name) == LogKind::kEvents;
  return says_nothing && path.has_parent_path() ? path.parent_path().string() : path.string();
}

}  // namespace

Result<std::vector<RunLog>> read_runs(const std::string& path, std::size_t most_bytes) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return run_error("there is no run " + printable(path),
                     "name a folder that a tracker writes into, or a file in it");
  if (fs::is_directory(status)) return runs_below(path, most_bytes);
  const LogKind kind = kind_of(fs::path(path).filename().string());
  if (!fs::is_regular_file(status) || kind == LogKind::kNone)
    return run_error(printable(path) + " is no tracking file",
                     "name a .jsonl, a .csv or an event file of TensorBoard");
  RunLog run;
  run.name = name_of_file(path);
  if (auto added = add_file(run, path, kind, most_bytes); !added) return std::move(added).error();
  return std::vector<RunLog>{std::move(run)};
}

}  // namespace accel::launcher
