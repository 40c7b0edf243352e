#include "launcher/top/top_screen.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <functional>
#include <initializer_list>
#include <iterator>
#include <numeric>
#include <string_view>

#include "runtime/printable.h"
#include "runtime/text/counted.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher {
namespace {

constexpr std::size_t kHeadRows = 3;  // the node, what is the matter, the names of the columns
constexpr std::size_t kFootRows = 1;
constexpr std::string_view kSortNames[kNumTopSorts] = {
    "state", "name", "user", "workers", "rate", "memory", "restarts", "elapsed"};
constexpr std::string_view kMarker = "> ";  // of the selected row
constexpr std::string_view kNoMarker = "  ";

std::string in_one_line(const std::string& text) {
  std::string line = printable(text);
  std::ranges::replace(line, '\n', ' ');
  std::ranges::replace(line, '\t', ' ');
  return line;
}

std::string elapsed_text(std::optional<std::chrono::seconds> elapsed) {
  if (!elapsed) return "-";
  const long long seconds = std::max<long long>(0, elapsed->count());
  char text[48];
  if (seconds >= 86'400) {
    std::snprintf(text, sizeof text, "%lldd %02lldh", seconds / 86'400, seconds / 3'600 % 24);
  } else {
    std::snprintf(
        text, sizeof text, "%lld:%02lld:%02lld", seconds / 3'600, seconds / 60 % 60, seconds % 60);
  }
  return text;
}

std::string memory_text(std::optional<double> bytes) {
  if (!bytes) return "-";
  static constexpr std::string_view kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double amount = *bytes / 1024;
  std::size_t unit = 0;
  while (amount >= 1024 && unit + 1 < std::size(kUnits)) amount /= 1024, ++unit;
  char text[32];
  std::snprintf(text, sizeof text, amount < 10 ? "%.1f " : "%.0f ", amount);
  return text + std::string(kUnits[unit]);
}

std::string cores_text(std::optional<double> cores) {
  if (!cores) return "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", *cores);
  return text;
}

// "2.50/s", "4.80/min", "3.20/h".
std::string rate_text(std::optional<double> a_second) {
  if (!a_second) return "-";
  struct Unit {
    double seconds;
    const char* name;
  };
  static constexpr Unit kUnits[] = {{1, "s"}, {60, "min"}, {3'600, "h"}};
  const Unit* unit = kUnits;
  while (*a_second * unit->seconds < 0.1 && std::next(unit) != std::end(kUnits)) ++unit;
  const double rate = *a_second * unit->seconds;
  char text[48];
  std::snprintf(text,
                sizeof text,
                rate < 10    ? "%.2f/%s"
                : rate < 100 ? "%.1f/%s"
                             : "%.0f/%s",
                rate,
                unit->name);
  return text;
}

std::string step_text(std::optional<std::uint64_t> step) {
  return step ? std::to_string(*step) : "-";
}

// A column beside the one that takes what is left.
struct Column {
  std::string_view title;
  std::size_t width;  // with the blank before it
  int weight;         // those of more weight stay where the window is narrow
  bool is_left = false;
};

using Cells = std::vector<std::string>;  // one for each column

constexpr std::size_t kLeastName = 16;
constexpr std::size_t kMostName = 48;
constexpr Column kJobColumns[] = {{"STATE", 11, 9, true},
                                  {"USER", 9, 1, true},
                                  {"NODES", 6, 0},
                                  {"WORKERS", 8, 2},
                                  {"STEP", 9, 6},
                                  {"RATE", 9, 7},
                                  {"MEMORY", 9, 5},
                                  {"RESTARTS", 9, 3},
                                  {"ELAPSED", 9, 8},
                                  {"EXIT", 5, 4}};
constexpr std::size_t kLeastEnding = 9;
constexpr Column kRankColumns[] = {{"RANK", 6, 4},
                                   {"PID", 10, 1},
                                   {"STEP", 9, 2},
                                   {"RATE", 9, 0},
                                   {"MEMORY", 10, 3},
                                   {"CORES", 8, 2}};

// Which of `columns` have room, the weightiest first.
template <std::size_t kCount>
std::array<bool, kCount> fitting(const Column (&columns)[kCount], std::size_t room) {
  std::array<std::size_t, kCount> order;
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return columns[i].weight; });
  std::array<bool, kCount> fits{};
  for (const std::size_t i : order) {
    fits[i] = columns[i].width <= room;
    if (fits[i]) room -= columns[i].width;
  }
  return fits;
}

// The cells of the columns that fit, without the column that takes the rest.
template <std::size_t kCount>
std::string column_row(const Column (&columns)[kCount],
                       const std::array<bool, kCount>& fits,
                       const Cells& cells) {
  std::string row;
  for (std::size_t i = 0; i < kCount; ++i) {
    if (!fits[i]) continue;
    const Column& column = columns[i];
    row += column.is_left ? " " + padded_columns(cells[i], column.width - 1)
                          : " " + right_columns(cells[i], column.width - 1);
  }
  return row;
}

template <std::size_t kCount>
Cells titles_of(const Column (&columns)[kCount]) {
  Cells titles;
  for (const Column& column : columns) titles.emplace_back(column.title);
  return titles;
}

Cells cells_of(const TopJob& job) {
  return {in_one_line(job.state),
          in_one_line(job.user),
          std::to_string(job.num_nodes),
          std::to_string(job.num_workers),
          step_text(top_step(job)),
          rate_text(top_step_rate(job)),
          memory_text(top_memory_bytes(job)),
          std::to_string(job.restarts),
          elapsed_text(job.elapsed),
          job.exit_code ? std::to_string(*job.exit_code) : ""};
}

Cells cells_of(const TopRank& rank) {
  const bool has_rate = rank.step_seconds && *rank.step_seconds > 0;
  return {std::to_string(rank.rank),
          rank.pid > 0 ? std::to_string(rank.pid) : "-",
          step_text(rank.step),
          rate_text(has_rate ? std::optional(1 / *rank.step_seconds) : std::nullopt),
          memory_text(rank.memory_bytes),
          cores_text(rank.cpu)};
}

std::string rank_state(const TopRank& rank) {
  if (rank.pid > 0) return "running";
  return rank.ending.empty() ? "ended" : in_one_line(rank.ending);
}

constexpr std::string_view kHelpLines[] = {"arrows, PgUp, PgDn, Home, End  move",
                                           "Enter  the ranks of the job",
                                           "Esc    back; no filter",
                                           "/      filter: name, user or state",
                                           "s, S   sort: next order, last order",
                                           "r      the other way round",
                                           "l      follow the log until Ctrl-C",
                                           "k      stop the job, after a question",
                                           "Space  ask the agent now",
                                           "Ctrl-L draw anew",
                                           "q      quit"};

// As many of `words` as fit, the first ones before others.
std::string fitting_words(std::initializer_list<std::string_view> words, std::size_t columns) {
  std::string text;
  for (const std::string_view word : words) {
    const std::string_view between = text.empty() ? "" : "   ";
    if (text_columns(text) + between.size() + word.size() > columns) break;
    text.append(between).append(word);
  }
  return text;
}

class Screen {
 public:
  Screen(const TopModel& model, const TopWindow& window) : model_(model), window_(window) {}

  std::vector<std::string> lines() {
    add_styled(head(), "\x1b[1m");
    add(matter());
    if (model_.shows_keys) {
      add_keys();
    } else {
      model_.page == TopPage::kRanks ? add_ranks() : add_jobs();
    }
    if (window_.rows > 0) {
      if (lines_.size() > window_.rows - kFootRows) lines_.resize(window_.rows - kFootRows);
      while (lines_.size() + kFootRows < window_.rows) lines_.emplace_back();
      add(foot());
    }
    return std::move(lines_);
  }

 private:
  void add(const std::string& line) { lines_.push_back(fitted_columns(line, window_.columns)); }
  void add_styled(const std::string& line, std::string_view style) {
    if (!window_.has_styles) return add(line);
    lines_.push_back(std::string(style) + padded_columns(line, window_.columns) + "\x1b[0m");
  }

  [[nodiscard]] std::string head() const {
    if (!model_.has_answer) return "accel top";
    std::size_t running = 0;
    for (const TopJob& job : model_.jobs) running += job.state == "running" ? 1 : 0;
    std::string text =
        "node " + in_one_line(model_.node) + (model_.is_drained ? " (drained)" : "") + "   " +
        counted(model_.jobs.size(), "job") + ", " + std::to_string(running) + " running";
    if (!model_.filter.empty())
      text += "   " + std::to_string(shown_jobs(model_).size()) + " with '" +
              in_one_line(model_.filter) + "'";
    return text + "   sorted by " + std::string(kSortNames[static_cast<int>(model_.sort)]) +
           (model_.is_reversed ? ", reversed" : "");
  }

  [[nodiscard]] std::string matter() const {
    if (!model_.lost.empty())
      return "! the agent does not answer, this is old: " + in_one_line(model_.lost);
    if (model_.silent_for.count() > 0)
      return "! no answer of the agent for " + counted(model_.silent_for.count(), "second");
    return model_.has_answer ? in_one_line(model_.notice) : "waiting for the agent";
  }

  void add_jobs() {
    const std::size_t room = window_.columns > kMarker.size() + kLeastName
                                 ? window_.columns - kMarker.size() - kLeastName
                                 : 0;
    const auto fits = fitting(kJobColumns, room);
    const std::string titles = column_row(kJobColumns, fits, titles_of(kJobColumns));
    const std::size_t taken = kMarker.size() + text_columns(titles);
    const std::size_t left = window_.columns > taken ? window_.columns - taken : 0;
    const std::size_t name = std::clamp(left, kLeastName, kMostName);
    add_styled(std::string(kNoMarker) + padded_columns("JOB", name) + titles, "\x1b[4m");
    const auto jobs = shown_jobs(model_);
    const TopJob* const chosen = selected_job(model_);
    if (jobs.empty() && model_.has_answer)
      add(model_.jobs.empty() ? "  no jobs" : "  no job fits the filter");
    const std::size_t first = first_job(jobs, chosen);
    for (std::size_t i = first; i < jobs.size() && i < first + page_rows(); ++i) {
      const TopJob& job = *jobs[i];
      const bool is_chosen = &job == chosen && window_.rows > 0;
      const std::string row = std::string(is_chosen ? kMarker : kNoMarker) +
                              padded_columns(in_one_line(job.id), name) +
                              column_row(kJobColumns, fits, cells_of(job));
      is_chosen ? add_styled(row, "\x1b[7m") : add(row);
    }
  }

  // The selected row stands in the middle, where the list is longer than the window.
  [[nodiscard]] std::size_t first_job(const std::vector<const TopJob*>& jobs,
                                      const TopJob* chosen) const {
    if (jobs.size() <= page_rows()) return 0;
    const auto row = static_cast<std::size_t>(std::ranges::find(jobs, chosen) - jobs.begin());
    const std::size_t before = page_rows() / 2;
    return std::min(row > before ? row - before : 0, jobs.size() - page_rows());
  }

  void add_ranks() {
    const TopJob* const job = find_job(model_, model_.selected);
    if (job == nullptr) return add("that job is gone");
    add_styled(in_one_line(job->id) + "  " + in_one_line(job->state) + "  " +
                   counted(job->restarts, "restart") + "  " + elapsed_text(job->elapsed) +
                   (job->exit_code ? "  exit code " + std::to_string(*job->exit_code) : "") +
                   (job->reason.empty() ? "" : "  " + in_one_line(job->reason)),
               "\x1b[4m");
    const auto fits =
        fitting(kRankColumns, window_.columns > kLeastEnding ? window_.columns - kLeastEnding : 0);
    std::vector<std::string> rows;
    for (const std::string& node : job->nodes) rows.push_back("  node " + in_one_line(node));
    if (!job->ranks.empty())
      rows.push_back(column_row(kRankColumns, fits, titles_of(kRankColumns)) + "  STATE");
    for (const TopRank& rank : job->ranks)
      rows.push_back(column_row(kRankColumns, fits, cells_of(rank)) + "  " + rank_state(rank));
    const std::size_t end = std::min(rows.size(), model_.first_row + page_rows());
    for (std::size_t i = model_.first_row; i < end; ++i) add(rows[i]);
  }

  void add_keys() {
    for (const std::string_view key : kHelpLines) add("  " + std::string(key));
  }

  [[nodiscard]] std::size_t page_rows() const {
    return window_.rows == 0 ? model_.jobs.size() + 100'000 : top_page_rows(window_);
  }

  // The keys of the answer stay, whatever the name and the window.
  [[nodiscard]] std::string question() const {
    const TopJob* const job = find_job(model_, model_.asked);
    const std::string name = in_one_line(job == nullptr ? model_.asked : job->id);
    static constexpr std::string_view kAnswers[] = {
        "?  y: yes, with its grace   K: SIGKILL now   any other key: no",
        "? y: yes K: SIGKILL n: no",
        "? y/K/n"};
    static constexpr std::string_view kKillAnswers[] = {
        ", which stops already?  y: SIGKILL now   any other key: no",
        "? y: SIGKILL now n: no",
        "? K/n"};
    constexpr std::size_t kShortName = 10;
    std::string_view answers;
    for (const std::string_view each : model_.asks_for_kill ? kKillAnswers : kAnswers) {
      answers = each;
      if (5 + std::min(kShortName, text_columns(name)) + each.size() <= window_.columns) break;
    }
    const std::size_t others = 5 + answers.size();
    const std::size_t room = window_.columns > others ? window_.columns - others : 0;
    return (model_.asks_for_kill ? "kill " : "stop ") +
           fitted_columns(name, std::min<std::size_t>(room, 40)) + std::string(answers);
  }

  [[nodiscard]] std::string foot() const {
    if (!model_.asked.empty()) return question();
    if (model_.shows_keys) return "any key goes back";
    if (model_.is_typing) return "filter: " + in_one_line(model_.filter) + "_";
    if (!model_.message.empty()) return in_one_line(model_.message);
    if (model_.page == TopPage::kRanks)
      return fitting_words({"q quit", "? keys", "Esc back", "k stop", "l log"}, window_.columns);
    return fitting_words(
        {"q quit", "? keys", "Enter ranks", "k stop", "/ filter", "s sort", "r reverse", "l log"},
        window_.columns);
  }

  const TopModel& model_;
  const TopWindow& window_;
  std::vector<std::string> lines_;
};

}  // namespace

std::size_t top_page_rows(const TopWindow& window) {
  const std::size_t others = kHeadRows + kFootRows;
  return window.rows > others ? window.rows - others : 1;
}

std::vector<std::string> top_lines(const TopModel& model, const TopWindow& window) {
  return Screen(model, window).lines();
}

}  // namespace accel::launcher
