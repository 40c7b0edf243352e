// CurveFeed: the curves that a job's trackers write, for its page.
//
// The files may be large, and the loop has workers to look after: a thread reads them and makes the answer, one look at a time. Whoever
// asks meanwhile gets what that look finds. Nobody waits for a look that does not end (SideReader).
//
// Threads:  on the loop.
// Cost:     each look reads the files anew, within CurveLimits. A number takes 24 bytes of memory, and two in a file at least.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "launcher/curves/run_log.h"
#include "launcher/watch/side_reader.h"
#include "runtime/supervisor/dashboard/dashboard_curves.h"

namespace accel::launcher {

// Of one look; `accel plot` draws more.
struct CurveLimits {
  RunLimits runs;
  std::size_t panels = 200;
  std::size_t points = 400'000;  // of all curves together: some 15 MB of JSON
};

class CurveFeed {
 public:
  using TellCurves = std::function<void(std::string json)>;  // of DashboardCurves

  static constexpr int kColumns = 300;  // of a panel, with four points of a curve at most
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

// What is there now; what is not is said in the notice. Reads files.
[[nodiscard]] supervisor::DashboardCurves curves_at(const std::string& path,
                                                    const CurveLimits& limits = {});

}  // namespace accel::launcher
