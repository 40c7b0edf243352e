#include "launcher/watch/curve_feed.h"

#include <memory>
#include <string>
#include <utility>

#include "launcher/curves/shown_curves.h"

namespace accel::launcher {
CurveFeed::CurveFeed(boost::asio::io_context& loop, std::string path)
    : path_(std::move(path)), reader_(loop) {}

void CurveFeed::read(TellCurves done) {
  const auto json_of_notice = [](const std::string& notice) {
    return to_json(supervisor::DashboardCurves{.notice = "the curves are not read: " + notice});
  };
  if (waiting_.size() >= kMostWaiting)
    return done(json_of_notice("the file system has not answered those who asked before"));
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  const auto json = std::make_shared<std::string>();
  reader_.add([json, path = path_] { *json = to_json(curves_at(path)); },
              [this, json, json_of_notice](const std::string& failure) {
                const std::string told = failure.empty() ? *json : json_of_notice(failure);
                for (const TellCurves& each : std::exchange(waiting_, {})) each(told);
              });
}

}  // namespace accel::launcher
