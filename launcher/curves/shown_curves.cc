#include "launcher/curves/shown_curves.h"

#include <utility>

#include "launcher/curves/panels.h"

namespace accel::launcher {
namespace {

using supervisor::DashboardCurve;
using supervisor::DashboardCurves;
using supervisor::DashboardPanel;

DashboardCurve shown_curve(const Curve& curve, std::string run) {
  const double span = curve.points.back().x - curve.points.front().x;
  const double width = span > 0 ? span / kShownColumns : 1;
  DashboardCurve shown = {.run = std::move(run), .points = {}};
  for (const CurvePoint& point : without_unseen(curve.points, width))
    shown.points.push_back({point.x, point.y});
  return shown;
}

// Adds what can be shown of the panel; false: no curve more fits into `points_left`.
bool add_panel(DashboardCurves& shown,
               const Panel& panel,
               const std::vector<RunLog>& runs,
               std::size_t& points_left) {
  DashboardPanel made = {.metric = panel.metric};
  bool fits = true;
  for (const Curve& curve : panel.curves) {
    DashboardCurve line = shown_curve(curve, runs[curve.run].name);
    fits = line.points.size() <= points_left;
    if (!fits) break;
    points_left -= line.points.size();
    made.curves.push_back(std::move(line));
  }
  if (!made.curves.empty()) shown.panels.push_back(std::move(made));
  return fits;
}

void add_notice(DashboardCurves& shown, const std::string& text) {
  if (!shown.notice.empty()) shown.notice += "; ";
  shown.notice += text;
}

}  // namespace

DashboardCurves curves_at(const std::string& path, const CurveLimits& limits) {
  NewestRuns read = read_newest_runs(path, limits.runs);
  DashboardCurves shown = {.notice = std::move(read.notice)};
  if (read.runs.empty()) return shown;
  const auto panels = panels_of(read.runs, {});
  if (!panels) {
    add_notice(shown, panels.error().message());
    return shown;
  }
  shown.x_label = panels->x_label;
  std::size_t points_left = limits.points;
  for (const Panel& panel : panels->panels) {
    const bool is_beyond = shown.panels.size() == limits.panels;
    if (!is_beyond && add_panel(shown, panel, read.runs, points_left)) continue;
    add_notice(shown,
               "only " + std::to_string(shown.panels.size()) + " of " +
                   std::to_string(panels->panels.size()) + " metrics are shown" +
                   (is_beyond ? "" : ", for their curves have too many points"));
    break;
  }
  return shown;
}

}  // namespace accel::launcher
