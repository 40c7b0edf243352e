// CurveFeed: the curves that a job's trackers write, for its page.
//
// The files may be large, and the loop has workers to look after: a thread reads them, one look at a time. Whoever asks meanwhile gets
// what that look finds.
//
// Threads:  on the loop; the thread shares nothing, and is waited for at the end.
// Cost:     each look reads the files anew: kMostBytes of each file at most.
// Source:   docs/guides/dashboard.md.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/io_context.hpp>

#include "runtime/supervisor/dashboard/dashboard_curves.h"

namespace accel::launcher {

class CurveFeed {
 public:
  using TellCurves = std::function<void(supervisor::DashboardCurves)>;

  static constexpr std::size_t kMostBytes = std::size_t{64} << 20;  // of a file
  static constexpr std::size_t kMostPanels = 200;  // of metrics; `accel plot` draws more
  static constexpr int kColumns = 300;  // of a panel, with four points of a curve at most

  // `path`: a folder that trackers write into, or a file of theirs. It need not be there yet.
  CurveFeed(boost::asio::io_context& loop, std::string path);
  ~CurveFeed();
  CurveFeed(const CurveFeed&) = delete;
  CurveFeed& operator=(const CurveFeed&) = delete;

  void read(TellCurves done);

 private:
  boost::asio::io_context& loop_;
  const std::string path_;
  std::vector<TellCurves> waiting_;
  std::thread reader_;
};

// What is there now; what is not is said in the notice. Reads files.
[[nodiscard]] supervisor::DashboardCurves curves_at(const std::string& path);

}  // namespace accel::launcher
