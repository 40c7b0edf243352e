// JobCurves: the curves that a job's trackers write, for the page.
//
// The files are a user's: they may lie where root cannot read, on a file system that does not answer, and hold anything. So
// `accel plot --json` reads them as that user, in a process of its own with limits, and its answer is checked to be JSON. Whoever asks
// for a job's curves while they are read gets what that look finds.
//
// Threads:  on the loop; programs are waited for on threads of FileReaders, in the turn of their user.
// Cost:     a process for each look, of at most look_limit; the page looks every 5 s.
// Source:   docs/guides/dashboard.md, docs/admin/security.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <sys/types.h>

#include "agent/files/file_readers.h"
#include "agent/main/timed_answer.h"

namespace accel::agent {

// Where a job's trackers write.
struct TrackingFolder {
  uid_t owner = 0;   // of the job
  std::string path;  // empty: nobody said
  auto operator<=>(const TrackingFolder&) const = default;
};

struct JobCurvesOptions {
  std::string program;        // accel
  bool changes_user = false;  // the agent is root: the program gets the rights of the job's user
  std::chrono::milliseconds look_limit{5'000};
  std::chrono::milliseconds patience{12'000};  // of whoever asks
};

class JobCurves {
 public:
  using Tell = std::function<void(std::string json)>;  // of DashboardCurves

  static constexpr std::size_t kMostBytes = std::size_t{24} << 20;

  // Lives as long as the loop runs; `files` longer.
  JobCurves(boost::asio::io_context& loop, FileReaders& files, JobCurvesOptions options);
  JobCurves(const JobCurves&) = delete;
  JobCurves& operator=(const JobCurves&) = delete;

  // Calls `done` once: with the curves, or with a notice why there are none.
  void read(const TrackingFolder& folder, Tell done);

 private:
  using Answer = TimedAnswer<std::string>;

  boost::asio::io_context& loop_;
  FileReaders& files_;
  const JobCurvesOptions options_;
  std::map<TrackingFolder, std::vector<std::shared_ptr<Answer>>>
      waiting_;  // for a look that is under way
};

// The program `accel` beside this one.
[[nodiscard]] std::string accel_beside_agent();

}  // namespace accel::agent
