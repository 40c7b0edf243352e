// DashboardCurves: what a job's trackers have logged, as the dashboard's page draws it: a panel for each metric, a curve for each run.
//
// Threads:  plain values, pure functions.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <string>
#include <vector>

namespace accel::supervisor {

struct DashboardPoint {
  double x = 0;
  double y = 0;  // NaN: a gap
};
struct DashboardCurve {
  std::string run;
  std::vector<DashboardPoint> points;
};
struct DashboardPanel {
  std::string metric;
  std::vector<DashboardCurve> curves;
};
struct DashboardCurves {
  std::string x_label;
  std::vector<DashboardPanel> panels;
  std::string notice;  // what is missing, and why
};

// One line. A gap is null.
[[nodiscard]] std::string to_json(const DashboardCurves& curves);
// Of none, with the notice that they are not read, and why.
[[nodiscard]] std::string json_of_unread_curves(const std::string& why);

}  // namespace accel::supervisor
