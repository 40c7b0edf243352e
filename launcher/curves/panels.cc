#include "launcher/curves/panels.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fnmatch.h>

#include "runtime/printable.h"
#include "runtime/suggest.h"
#include "runtime/text/joined.h"

namespace accel::launcher {
namespace {

struct TimeUnit {
  double seconds;
  std::string_view name;
};

// The largest unit of which two and more fit in.
TimeUnit time_unit_of(double longest) {
  constexpr TimeUnit kUnits[] = {{86'400, "d"}, {3'600, "h"}, {60, "min"}};
  for (const TimeUnit& unit : kUnits) {
    if (longest >= 2 * unit.seconds) return unit;
  }
  return {1, "s"};
}

// Values that the arithmetic of a picture can hold.
double drawable(double value) {
  constexpr double kLargest = 1e300;
  return std::clamp(value, -kLargest, kLargest);  // NaN stays
}

std::vector<CurvePoint> points_over_steps(const std::vector<RunPoint>& logged) {
  std::vector<CurvePoint> points;
  for (const RunPoint& point : logged) {
    const double step = drawable(point.step);
    while (!points.empty() && points.back().x >= step) points.pop_back();
    points.push_back({step, drawable(point.value)});
  }
  return points;
}

std::optional<double> first_time(const RunLog& run) {
  std::optional<double> first;
  for (const auto& [name, points] : run.metrics) {
    for (const RunPoint& point : points) {
      if (!std::isnan(point.time) && !(first && *first <= point.time)) first = point.time;
    }
  }
  return first;
}

std::vector<CurvePoint> points_over_time(const std::vector<RunPoint>& logged, double begin) {
  std::vector<CurvePoint> points;
  for (const RunPoint& point : logged) {
    if (std::isfinite(point.time))
      points.push_back({drawable(point.time - begin), drawable(point.value)});
  }
  return points;
}

bool has_number(const std::vector<CurvePoint>& points) {
  return std::ranges::any_of(points, [](const CurvePoint& point) { return !std::isnan(point.y); });
}

bool fits_pattern(const std::string& metric, const std::string& pattern) {
  return metric == pattern || ::fnmatch(pattern.c_str(), metric.c_str(), 0) == 0;
}

Error unknown_metric(const std::string& pattern, const std::set<std::string>& known) {
  constexpr std::size_t kShown = 20;
  const std::vector<std::string> all(known.begin(), known.end());
  std::vector<std::string> shown(
      all.begin(), all.begin() + static_cast<std::ptrdiff_t>(std::min(kShown, all.size())));
  if (all.size() > kShown) shown.push_back("...");
  const auto meant = nearest(pattern, all);
  return Error(ErrorCode::kInvalidArgument,
               "no run has a metric '" + printable(pattern) +
                   "', there are: " + printable(joined(shown, ", ")),
               meant ? "did you mean --metric '" + printable(*meant) + "'?"
                     : "name one of them, or a pattern as 'loss*'");
}

Result<std::set<std::string>> chosen_metrics(const std::vector<RunLog>& runs,
                                             const std::vector<std::string>& patterns) {
  std::set<std::string> known;
  for (const RunLog& run : runs) {
    for (const auto& [name, points] : run.metrics) known.insert(name);
  }
  if (patterns.empty()) return known;
  std::set<std::string> chosen;
  for (const std::string& pattern : patterns) {
    const std::size_t before = chosen.size();
    bool fits_any = false;
    for (const std::string& name : known) {
      if (!fits_pattern(name, pattern)) continue;
      fits_any = true;
      chosen.insert(name);
    }
    if (!fits_any && chosen.size() == before) return unknown_metric(pattern, known);
  }
  return chosen;
}

void scale_times(Panels& panels) {
  double longest = 0;
  for (const Panel& panel : panels.panels) {
    for (const Curve& curve : panel.curves) {
      for (const CurvePoint& point : curve.points) longest = std::max(longest, point.x);
    }
  }
  const TimeUnit unit = time_unit_of(longest);
  panels.x_label = "time (" + std::string(unit.name) + ")";
  for (Panel& panel : panels.panels) {
    for (Curve& curve : panel.curves) {
      for (CurvePoint& point : curve.points) point.x /= unit.seconds;
    }
  }
}

Error nothing_to_draw(const std::vector<RunLog>& runs, CurveAxis axis) {
  const bool has_points = std::ranges::any_of(runs, [](const RunLog& run) { return !run.empty(); });
  if (axis == CurveAxis::kTime && has_points)
    return Error(ErrorCode::kInvalidArgument,
                 "these runs have no numbers with a time",
                 "draw them over steps: --x step");
  return Error(
      ErrorCode::kInvalidArgument,
      "these runs have no numbers yet",
      "look again when a step has been logged; docs/guides/tracking.md says what trackers write");
}

}  // namespace

std::vector<CurvePoint> smoothed(const std::vector<CurvePoint>& points, double weight) {
  std::vector<CurvePoint> result = points;
  double average = 0;
  double share =
      1;  // weight ^ number of values so far: what the average still has of its beginning at 0
  for (CurvePoint& point : result) {
    if (std::isnan(point.y)) continue;
    average = weight * average + (1 - weight) * point.y;
    share *= weight;
    point.y = average / (1 - share);
  }
  return result;
}

std::vector<CurvePoint> without_unseen(const std::vector<CurvePoint>& points, double column_width) {
  std::vector<CurvePoint> seen;
  for (std::size_t begin = 0; begin < points.size();) {
    std::size_t end = begin + 1;
    const double column = std::floor(points[begin].x / column_width);
    const auto is_in_column = [&](const CurvePoint& point) {
      return !std::isnan(point.y) && std::floor(point.x / column_width) == column;
    };
    while (end < points.size() && !std::isnan(points[begin].y) && is_in_column(points[end])) ++end;
    const auto first = points.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = points.begin() + static_cast<std::ptrdiff_t>(end - 1);
    const auto [low, high] = std::minmax_element(
        first, last + 1, [](const CurvePoint& a, const CurvePoint& b) { return a.y < b.y; });
    std::vector<std::ptrdiff_t> kept = {
        first - points.begin(), low - points.begin(), high - points.begin(), last - points.begin()};
    std::ranges::sort(kept);
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (const std::ptrdiff_t index : kept) seen.push_back(points[static_cast<std::size_t>(index)]);
    begin = end;
  }
  return seen;
}

Result<Panels> panels_of(const std::vector<RunLog>& runs, const PanelOptions& options) {
  const auto metrics = chosen_metrics(runs, options.metrics);
  if (!metrics) return metrics.error();
  std::vector<double> begins;
  for (const RunLog& run : runs) begins.push_back(first_time(run).value_or(0));
  Panels all{.panels = {}, .x_label = "step"};
  for (const std::string& metric : *metrics) {
    Panel panel{.metric = metric, .curves = {}};
    for (std::size_t run = 0; run < runs.size(); ++run) {
      const auto found = runs[run].metrics.find(metric);
      if (found == runs[run].metrics.end()) continue;
      Curve curve{.run = run, .points = {}, .smooth = {}};
      curve.points = options.axis == CurveAxis::kStep
                         ? points_over_steps(found->second)
                         : points_over_time(found->second, begins[run]);
      if (has_number(curve.points)) panel.curves.push_back(std::move(curve));
    }
    if (!panel.curves.empty()) all.panels.push_back(std::move(panel));
  }
  if (all.panels.empty()) return nothing_to_draw(runs, options.axis);
  if (options.axis == CurveAxis::kTime) scale_times(all);
  if (options.smooth > 0) {
    for (Panel& panel : all.panels) {
      for (Curve& curve : panel.curves) curve.smooth = smoothed(curve.points, options.smooth);
    }
  }
  return all;
}

}  // namespace accel::launcher
