#include "launcher/watch/curve_feed.h"

#include <memory>
#include <string>
#include <utility>

#include "launcher/curves/shown_curves.h"
#include "runtime/supervisor/dashboard/dashboard_curves.h"

namespace accel::launcher {
CurveFeed::CurveFeed(boost::asio::io_context& loop, std::string path)
    : path_(std::move(path)), reader_(loop) {}

void CurveFeed::read(TellCurves done) {
  if (waiting_.size() >= kMostWaiting)
    return done(supervisor::json_of_unread_curves(
        "the file system has not answered those who asked before"));
  waiting_.push_back(std::move(done));
  if (waiting_.size() > 1) return;
  const auto json = std::make_shared<std::string>();
  reader_.add([json, path = path_] { *json = to_json(curves_at(path)); },
              [this, json](const std::string& failure) {
                const std::string told =
                    failure.empty() ? *json : supervisor::json_of_unread_curves(failure);
                for (const TellCurves& each : std::exchange(waiting_, {})) each(told);
              });
}

}  // namespace accel::launcher
