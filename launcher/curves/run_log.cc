#include "launcher/curves/run_log.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "launcher/curves/event_records.h"
#include "launcher/curves/tracking_file.h"
#include "runtime/printable.h"
#include "runtime/text/csv_row.h"
#include "runtime/text/folder_names.h"
#include "runtime/text/joined.h"
#include "runtime/text/number_text.h"

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

void add_text(RunLog& run, LogKind kind, std::string_view text) {
  if (kind == LogKind::kJsonLines) add_json_lines(run, text);
  if (kind == LogKind::kCsv) add_csv_rows(run, text);
  if (kind == LogKind::kEvents) add_events(run, text);
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

// The files of one run.
struct RunFiles {
  std::string name;  // of the run
  LogKind kind = LogKind::kNone;
  std::vector<fs::path> paths;
  bool is_named = false;  // by the user, who sees it also without numbers
};

fs::file_time_type last_write(const RunFiles& files) {
  auto last = fs::file_time_type::min();
  for (const fs::path& path : files.paths) {
    std::error_code error;
    const auto written = fs::last_write_time(path, error);
    if (!error) last = std::max(last, written);
  }
  return last;
}

Result<void> find_below(const fs::path& folder,
                        bool wants_events,
                        int depth,
                        std::vector<RunFiles>& found) {
  constexpr int kDeepest = 8;
  std::error_code error;
  const std::vector<std::string> names = names_in(folder, error);
  if (error && depth == 0)
    return run_error(
        "cannot read the folder " + printable(folder.string()) + ": " + error.message(),
        "check the path and its rights");
  const FolderFiles files = tracked_files(folder, names);
  if (files.kind != LogKind::kNone && (wants_events || files.kind != LogKind::kEvents)) {
    RunFiles& run = found.emplace_back(RunFiles{.name = folder.string(), .kind = files.kind});
    for (const std::string& name : files.names) run.paths.push_back(folder / name);
  }
  const bool has_lines = files.kind == LogKind::kJsonLines || files.kind == LogKind::kCsv;
  for (const std::string& name : names) {
    std::error_code ignored;
    const fs::path inner = folder / name;
    const bool is_folder = fs::is_directory(fs::symlink_status(inner, ignored));
    if (!is_folder || depth == kDeepest) continue;
    if (auto below = find_below(inner, wants_events && !has_lines, depth + 1, found); !below)
      return below;
  }
  return {};
}

// "runs/a" of "runs/a/log.jsonl".
std::string name_of_file(const fs::path& path) {
  const std::string name = path.filename().string();
  const bool says_nothing =
      name == kJsonName || name == kCsvName || kind_of(name) == LogKind::kEvents;
  return says_nothing && path.has_parent_path() ? path.parent_path().string() : path.string();
}

Result<std::vector<RunFiles>> find_runs(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (!fs::exists(status))
    return run_error("there is no run " + printable(path),
                     "name a folder that a tracker writes into, or a file in it");
  std::vector<RunFiles> found;
  if (fs::is_directory(status)) {
    const bool has_slash = path.size() > 1 && path.ends_with('/');
    const fs::path folder = has_slash ? fs::path(path).parent_path() : fs::path(path);
    if (auto walked = find_below(folder, true, 0, found); !walked) return std::move(walked).error();
    return found;
  }
  const LogKind kind = kind_of(fs::path(path).filename().string());
  if (!fs::is_regular_file(status) || kind == LogKind::kNone)
    return run_error(printable(path) + " is no tracking file",
                     "name a .jsonl, a .csv or an event file of TensorBoard");
  found.push_back({.name = name_of_file(path), .kind = kind, .paths = {path}, .is_named = true});
  return found;
}

Error no_numbers(const std::string& path) {
  return run_error("no numbers of a run in " + printable(path) + " or below",
                   "name a folder with log.jsonl, log.csv or events.out.tfevents.* in it; "
                   "docs/guides/tracking.md says how trackers write them");
}

// What of a look is not there, for people.
class LeftOut {
 public:
  void add_fault(const Error& error) {
    if (num_faults_++ == 0) first_fault_ = error.message();
  }
  void add_file() { ++num_files_; }
  void add_run() { ++num_runs_; }

  [[nodiscard]] std::string notice(const RunLimits& limits) const {
    std::vector<std::string> parts;
    if (num_faults_ > 0) parts.push_back(first_fault_);
    if (num_faults_ > 1) parts.push_back(std::to_string(num_faults_ - 1) + " more are not read");
    if (num_files_ > 0)
      parts.push_back(std::to_string(num_files_) +
                      " older files are not read, for all have more than " +
                      std::to_string(limits.total_bytes) + " bytes");
    if (num_runs_ > 0)
      parts.push_back("only the " + std::to_string(limits.runs) +
                      " runs are read that were written last, not " + std::to_string(num_runs_) +
                      " older ones");
    return joined(parts, "; ");
  }

 private:
  std::string first_fault_;
  std::size_t num_faults_ = 0;
  std::size_t num_files_ = 0;  // beyond the bytes of a look
  std::size_t num_runs_ = 0;
};

// `bytes_left` of the look.
RunLog read_run(const RunFiles& files,
                const RunLimits& limits,
                std::size_t& bytes_left,
                LeftOut& left_out) {
  RunLog run = {.name = files.name};
  for (const fs::path& path : files.paths) {
    std::error_code unknown;
    const auto size = fs::file_size(path, unknown);
    if (!unknown && size <= limits.file_bytes && size > bytes_left) {
      left_out.add_file();
      continue;
    }
    const auto text = read_tracking_file(path.string(), limits.file_bytes);
    if (!text) {
      left_out.add_fault(text.error());
      continue;
    }
    bytes_left -= std::min(bytes_left, text->size());
    add_text(run, files.kind, *text);
  }
  return run;
}

}  // namespace

Result<std::vector<RunLog>> read_runs(const std::string& path, std::size_t most_bytes) {
  const auto found = find_runs(path);
  if (!found) return found.error();
  std::vector<RunLog> runs;
  for (const RunFiles& files : *found) {
    RunLog run = {.name = files.name};
    for (const fs::path& file : files.paths) {
      const auto text = read_tracking_file(file.string(), most_bytes);
      if (!text) return text.error();
      add_text(run, files.kind, *text);
    }
    if (!run.empty() || files.is_named) runs.push_back(std::move(run));
  }
  if (runs.empty()) return no_numbers(path);
  std::ranges::sort(runs, {}, &RunLog::name);
  return runs;
}

NewestRuns read_newest_runs(const std::string& path, const RunLimits& limits) {
  const auto found = find_runs(path);
  if (!found) return {.notice = found.error().message()};
  std::vector<std::pair<fs::file_time_type, const RunFiles*>> newest;
  for (const RunFiles& files : *found) newest.emplace_back(last_write(files), &files);
  std::ranges::stable_sort(newest, std::greater<>(), [](const auto& each) { return each.first; });
  NewestRuns read;
  LeftOut left_out;
  std::size_t bytes_left = limits.total_bytes;
  for (const auto& [written, files] : newest) {
    if (read.runs.size() == limits.runs) {
      left_out.add_run();
      continue;
    }
    RunLog run = read_run(*files, limits, bytes_left, left_out);
    if (!run.empty()) read.runs.push_back(std::move(run));
  }
  read.notice = left_out.notice(limits);
  if (read.runs.empty() && read.notice.empty()) read.notice = no_numbers(path).message();
  std::ranges::sort(read.runs, {}, &RunLog::name);
  return read;
}

}  // namespace accel::launcher
