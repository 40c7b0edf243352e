// The sums by name and their table, as torch/autograd/profiler_util.py writes it: the same columns, widths and units, so that
// what reads one reads the other.

#include "libaccel/api/profiling/key_averages.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <tuple>
#include <utility>

#include <accel/error.h>

namespace accel {
namespace profiling {
namespace {

std::string shapes_text(const std::vector<std::vector<std::int64_t>>& shapes) {
  std::string text = "[";
  for (const auto& shape : shapes) {
    if (text.size() > 1) text += ", ";
    text += "[";
    for (std::size_t i = 0; i < shape.size(); ++i)
      text += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    text += "]";
  }
  return text + "]";
}

void add(KeyAverage& average, const OperatorCall& call, const std::vector<OperatorCall>& calls) {
  ++average.count;
  average.cpu_time_total += call.cpu_time_us();
  average.cpu_memory_usage += call.memory;
  average.flops += call.flops;
  if (call.is_async || !call.is_on_cpu) return;
  double self_time = call.cpu_time_us();
  std::int64_t self_memory = call.memory;
  for (const std::size_t child : call.children) {
    self_time -= calls[child].cpu_time_us();
    self_memory -= calls[child].memory;
  }
  average.self_cpu_time_total += self_time;
  average.self_cpu_memory_usage += self_memory;
}

}  // namespace

std::vector<KeyAverage> averages_of(const std::vector<OperatorCall>& calls,
                                    const KeyAveragesOptions& options) {
  using Key = std::tuple<std::string, bool, bool, std::string>;
  std::vector<KeyAverage> averages;
  std::map<Key, std::size_t> places;
  for (const OperatorCall& call : calls) {
    const std::string shapes = options.group_by_input_shape ? shapes_text(call.shapes) : "";
    const auto [place, is_new] = places.try_emplace(
        {call.name, call.is_on_cpu, call.is_annotation, shapes}, averages.size());
    if (is_new)
      averages.push_back({.key = call.name, .is_async = call.is_async, .input_shapes = shapes});
    add(averages[place->second], call, calls);
  }
  return averages;
}

}  // namespace profiling

namespace {

using profiling::TableContent;

constexpr std::size_t kColumn = 12;
constexpr std::size_t kMostName = 55;
constexpr std::size_t kMostShapes = 80;

template <typename... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 128> text{};
  (void)std::snprintf(text.data(), text.size(), format, args...);
  return text.data();
}

std::string time_text(double us) {
  if (us >= 1e6) return formatted("%.3fs", us / 1e6);
  if (us >= 1e3) return formatted("%.3fms", us / 1e3);
  return formatted("%.3fus", us);
}

std::string share_text(double us, double total_us) {
  return total_us == 0 ? "NaN" : formatted("%.2f%%", us * 100 / total_us);
}

std::string memory_text(std::int64_t bytes) {
  constexpr std::pair<std::int64_t, const char*> kUnits[] = {
      {1 << 30, "GB"}, {1 << 20, "MB"}, {1 << 10, "KB"}};
  for (const auto& [size, unit] : kUnits) {
    if (std::abs(bytes) >= size)
      return formatted("%.2f %s", static_cast<double>(bytes) / static_cast<double>(size), unit);
  }
  return std::to_string(bytes) + " B";
}

// "GFLOPs" and what a number of flops is multiplied with for it.
struct FlopsUnit {
  std::string name;
  double scale = 1;
};
FlopsUnit flops_unit(std::int64_t least) {
  constexpr std::array kNames = {"FLOPs", "KFLOPs", "MFLOPs", "GFLOPs", "TFLOPs", "PFLOPs"};
  const double thousands = std::clamp(
      std::log10(static_cast<double>(least)) / 3, 0.0, static_cast<double>(kNames.size() - 1));
  const auto power = static_cast<std::size_t>(thousands);
  return {kNames[power], std::pow(10.0, -3.0 * static_cast<double>(power))};
}

double order_of(const KeyAverage& event, const std::string& by) {
  if (by == "count") return static_cast<double>(event.count);
  if (by == "cpu_time") return event.cpu_time();
  if (by == "cpu_time_total") return event.cpu_time_total;
  if (by == "self_cpu_time_total") return event.self_cpu_time_total;
  if (by == "cpu_memory_usage") return static_cast<double>(event.cpu_memory_usage);
  if (by == "self_cpu_memory_usage") return static_cast<double>(event.self_cpu_memory_usage);
  if (by == "flops") return static_cast<double>(event.flops);
  throw Error(ErrorCode::kInvalidArgument,
              "sort_by is '" + by +
                  "', expected count, cpu_time, cpu_time_total, self_cpu_time_total, "
                  "cpu_memory_usage, self_cpu_memory_usage or flops");
}

// Columns of texts, each to the right of its own width.
class TextTable {
 public:
  void add_column(std::string header, std::size_t width) {
    headers_.push_back(std::move(header));
    widths_.push_back(width);
  }
  [[nodiscard]] std::string rule() const {
    std::string line;
    for (const std::size_t width : widths_) line += std::string(width, '-') + "  ";
    return line + "\n";
  }
  [[nodiscard]] std::string row(const std::vector<std::string>& cells) const {
    std::string line;
    for (std::size_t i = 0; i < widths_.size(); ++i) {
      line +=
          std::string(widths_[i] - std::min(widths_[i], cells[i].size()), ' ') + cells[i] + "  ";
    }
    return line + "\n";
  }
  [[nodiscard]] std::string header() const { return row(headers_); }

 private:
  std::vector<std::string> headers_;
  std::vector<std::size_t> widths_;
};

std::size_t width_of(const std::vector<KeyAverage>& events,
                     std::string KeyAverage::*text,
                     std::size_t most) {
  std::size_t longest = 0;
  for (const KeyAverage& event : events) longest = std::max(longest, (event.*text).size());
  return std::min(longest + 4, most);
}

std::string cut_name(const std::string& name) {
  return name.size() < kMostName - 3 ? name : name.substr(0, kMostName - 3) + "...";
}

// The least number of operations of an event that has any.
std::int64_t least_flops(const std::vector<KeyAverage>& events) {
  std::int64_t least = 0;
  for (const KeyAverage& event : events)
    if (event.flops > 0 && (least == 0 || event.flops < least)) least = event.flops;
  return least;
}

TableContent content_of(const std::vector<KeyAverage>& events, bool has_memory, bool has_flops) {
  return {.has_memory = has_memory,
          .has_shapes = std::ranges::any_of(
              events, [](const KeyAverage& event) { return !event.input_shapes.empty(); }),
          .least_flops = has_flops ? least_flops(events) : 0};
}

TextTable table_of(const std::vector<KeyAverage>& events,
                   const TableContent& content,
                   const FlopsUnit& unit) {
  TextTable table;
  table.add_column("Name", width_of(events, &KeyAverage::key, kMostName));
  for (const char* header : {"Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg"})
    table.add_column(header, kColumn);
  if (content.has_memory) {
    table.add_column("CPU Mem", kColumn);
    table.add_column("Self CPU Mem", kColumn);
  }
  table.add_column("# of Calls", kColumn);
  if (content.has_shapes)
    table.add_column("Input Shapes", width_of(events, &KeyAverage::input_shapes, kMostShapes));
  if (content.least_flops > 0) table.add_column("Total " + unit.name, kColumn);
  return table;
}

std::vector<std::string> cells_of(const KeyAverage& event,
                                  const TableContent& content,
                                  const FlopsUnit& unit,
                                  double total_us) {
  std::vector<std::string> cells = {
      cut_name(event.key),
      share_text(event.self_cpu_time_total, total_us),
      time_text(event.self_cpu_time_total),
      event.is_async ? "0" : share_text(event.cpu_time_total, total_us),
      time_text(event.cpu_time_total),
      time_text(event.cpu_time())};
  if (content.has_memory) {
    cells.push_back(memory_text(event.cpu_memory_usage));
    cells.push_back(memory_text(event.self_cpu_memory_usage));
  }
  cells.push_back(std::to_string(event.count));
  if (content.has_shapes) cells.push_back(event.input_shapes.substr(0, kMostShapes));
  if (content.least_flops > 0) {
    cells.push_back(event.flops <= 0
                        ? "--"
                        : formatted("%8.3f", static_cast<double>(event.flops) * unit.scale));
  }
  return cells;
}

}  // namespace

double KeyAverages::self_cpu_time_total() const noexcept {
  double total = 0;
  for (const KeyAverage& event : events_) total += event.self_cpu_time_total;
  return total;
}

std::string KeyAverages::table(const ProfileTableOptions& options) const {
  if (events_.empty()) return {};
  std::vector<KeyAverage> events = events_;
  if (!options.sort_by.empty()) {
    std::ranges::stable_sort(events, std::greater{}, [&](const KeyAverage& event) {
      return order_of(event, options.sort_by);
    });
  }
  const TableContent content = content_of(events, has_memory_, has_flops_);
  const FlopsUnit unit = flops_unit(std::max<std::int64_t>(content.least_flops, 1));
  const TextTable table = table_of(events, content, unit);
  const double total_us = self_cpu_time_total();
  std::string text = table.rule() + table.header() + table.rule();
  int rows = 0;
  for (const KeyAverage& event : events) {
    if (rows++ == options.row_limit) break;
    text += table.row(cells_of(event, content, unit, total_us));
  }
  return text + table.rule() + "Self CPU time total: " + time_text(total_us) + "\n";
}

}  // namespace accel
