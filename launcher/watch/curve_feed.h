// CurveFeed: the curves that a job's trackers write, for its page.
//
// The files may be large, and the loop has workers to look after: a thread reads them and makes the answer, one look at a time. Whoever
// asks meanwhile gets what that look finds. Nobody waits for a look that does not end (SideReader).
//
// Threads:  on the loop.
// Cost:     each look reads the files anew (launcher/curves/shown_curves.h).
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/watch/side_reader.h"

namespace accel::launcher {

class CurveFeed {
 public:
  using TellCurves = std::function<void(std::string json)>;  // of DashboardCurves

  static constexpr std::size_t kMostWaiting = 8;

  // `path`: a folder that trackers write into, or a file of theirs. It need not be there yet.
  CurveFeed(boost::asio::io_context& loop, std::string path);
  CurveFeed(const CurveFeed&) = delete;
  CurveFeed& operator=(const CurveFeed&) = delete;

  // Where kMostWaiting wait already: `done` at once, with a notice.
  void read(TellCurves done);

 private:
  const std::string path_;
  std::vector<TellCurves> waiting_;
  SideReader reader_;
};

}  // namespace accel::launcher
