#include "runtime/supervisor/dashboard/dashboard_curves.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "runtime/printable.h"

namespace accel::supervisor {

std::string to_json(const DashboardCurves& curves) {
  using nlohmann::json;
  json panels = json::array();
  for (const DashboardPanel& panel : curves.panels) {
    json lines = json::array();
    for (const DashboardCurve& curve : panel.curves) {
      json points = json::array();
      for (const DashboardPoint& point : curve.points) points.push_back({point.x, point.y});
      lines.push_back({{"run", printable(curve.run)}, {"points", std::move(points)}});
    }
    panels.push_back({{"metric", printable(panel.metric)}, {"curves", std::move(lines)}});
  }
  const json all = {{"x_label", curves.x_label},
                    {"panels", std::move(panels)},
                    {"notice", printable(curves.notice)}};
  return all.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string json_of_unread_curves(const std::string& why) {
  return to_json(DashboardCurves{.notice = "the curves are not read: " + why});
}

}  // namespace accel::supervisor
