#include "launcher/watch/curve_feed.h"

#include <algorithm>
#include <memory>
#include <system_error>
#include <utility>

#include <boost/asio/post.hpp>

#include "launcher/curves/panels.h"

namespace accel::launcher {
namespace {

using supervisor::DashboardCurve;
using supervisor::DashboardCurves;
using supervisor::DashboardPanel;

DashboardCurve shown_curve(const Curve& curve, std::string run) {
  const double span = curve.points.back().x - curve.points.front().x;
  const double width = span > 0 ? span / CurveFeed::kColumns : 1;
  DashboardCurve shown = {.run = std::move(run), .points = {}};
  for (const CurvePoint& point : without_unseen(curve.points, width))
    shown.points.push_back({point.x, point.y});
  return shown;
}

}  // namespace

DashboardCurves curves_at(const std::string& path) {
  const auto runs = read_runs(path, CurveFeed::kMostBytes);
  if (!runs) return {.notice = runs.error().message()};
  const auto panels = panels_of(*runs, {});
  if (!panels) return {.notice = panels.error().message()};
  DashboardCurves shown = {.x_label = panels->x_label};
  for (const Panel& panel : panels->panels) {
    if (shown.panels.size() == CurveFeed::kMostPanels) {
      shown.notice = "only " + std::to_string(CurveFeed::kMostPanels) + " of " +
                     std::to_string(panels->panels.size()) + " metrics are shown";
      break;
    }
    DashboardPanel& made = shown.panels.emplace_back(DashboardPanel{.metric = panel.metric});
    for (const Curve& curve : panel.curves)
      made.curves.push_back(shown_curve(curve, (*runs)[curve.run].name));
  }
  return shown;
}

CurveFeed::CurveFeed(boost::asio::io_context& loop, std::string path)
    : loop_(loop), path_(std::move(path)) {}

CurveFeed::~CurveFeed() {
  if (reader_.joinable()) reader_.join();
}

void CurveFeed::read(TellCurves done) {
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  if (reader_.joinable()) reader_.join();  // the one before, which has answered
  const auto tell = [this](const DashboardCurves& curves) {
    for (const TellCurves& each : std::exchange(waiting_, {})) each(curves);
  };
  try {
    reader_ = std::thread([&loop = loop_, path = path_, tell] {
      boost::asio::post(loop, [tell, curves = curves_at(path)] { tell(curves); });
    });
  } catch (const std::system_error& full) {
    tell({.notice = std::string("no thread could be started to read them: ") + full.what()});
  }
}

}  // namespace accel::launcher
