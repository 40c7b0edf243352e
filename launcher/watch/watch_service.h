// WatchService: shows a launcher's job to whoever asks, over HTTP, while the launcher waits for its shim.
//
// Where the workers stand is asked of the shim when somebody looks, for at most kLookPatience. Whoever has the operators' token may
// stop the job, as a SIGTERM to the launcher does, and see what its ranks wait for.
//
// Threads:  the launcher's one: all of it on loop().
// Source:   docs/reference/metrics.md, docs/guides/dashboard.md.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "launcher/watch/curve_feed.h"
#include "launcher/watch/job_watch.h"
#include "launcher/watch/side_reader.h"
#include "launcher/watch/watch_settings.h"
#include "runtime/supervisor/dashboard/dashboard_server.h"
#include "runtime/supervisor/metrics/metrics_server.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::launcher {

class WatchService {
 public:
  static constexpr std::chrono::seconds kLookPatience{1};
  static constexpr std::chrono::milliseconds kLastLookPatience{300};  // for the last output
  static constexpr std::chrono::seconds kStackPatience{5};
  static constexpr std::chrono::milliseconds kLookEvery{500};

  // Listens. Errors  kFileIo: an address cannot be taken.
  // `log_dir`: below which the files of the job's output are; empty: there are none.
  [[nodiscard]] static Result<std::unique_ptr<WatchService>> start(const WatchSettings& settings,
                                                                   JobWatch::Names names,
                                                                   std::string log_dir);
  ~WatchService();

  // Lines for the user: where the job is shown.
  [[nodiscard]] std::vector<std::string> notices() const;
  // Of the page, with the token of those who may stop the job. Empty: there is no page.
  [[nodiscard]] std::string operators_address() const;

  struct Handlers {
    std::function<void(const supervisor::HostRequest&)> request;
    std::function<void(const std::string& from)> stop;  // as SIGTERM; `from`: who wants it, where
  };
  // The shim is there. The handlers are called from handlers of loop() alone.
  void attend(Handlers handlers);
  // See JobWatch::place().
  void place_workers(int first_rank, int world_size) { watch_.place(first_rank, world_size); }
  void hear(const supervisor::HostEvent& event);
  void ask_to_stop();
  // The shim is lost, or refused the job.
  void lose(const Error& error);
  // The job has ended: pages that are open are told so, for at most kLookPatience.
  void finish();

  [[nodiscard]] boost::asio::io_context& loop() { return loop_; }

 private:
  WatchService(JobWatch::Names names, std::string log_dir);
  Result<void> serve_metrics(const supervisor::TcpEndpoint& endpoint);
  Result<void> serve_dashboard(const supervisor::TcpEndpoint& endpoint,
                               const std::string& tracking_dir);
  [[nodiscard]] supervisor::DashboardState shown() const;
  using TellTail = std::function<void(supervisor::LogTail)>;
  void read_log(const supervisor::LogQuestion& question, const TellTail& done);
  using TellOutcome = std::function<void(supervisor::DashboardOutcome)>;
  void act(const supervisor::DashboardAction& action, const TellOutcome& done);
  void take_stacks(int rank, const TellOutcome& done);
  void hear_stacks(const std::string& text);
  void collect(std::function<void(std::string)> done);
  void look(std::function<void()> done);
  void end_looks();
  void look_for_steps();

  boost::asio::io_context loop_;
  boost::asio::steady_timer limit_;  // of those who wait for a snapshot
  boost::asio::steady_timer steps_;
  const std::string job_;
  const std::string log_dir_;
  JobWatch watch_;
  Handlers handlers_;
  struct StackWish {
    int rank = 0;
    TellOutcome done;
    boost::asio::steady_timer limit;
  };
  std::map<int, StackWish> stack_wishes_;  // by their numbers
  int num_wishes_ = 0;                     // until now
  std::vector<std::function<void()>> waiting_;
  std::unique_ptr<supervisor::MetricsServer> metrics_;
  std::string metrics_at_;             // the address
  std::unique_ptr<CurveFeed> curves_;  // nullptr: it is not known where they are
  SideReader logs_{loop_};
  std::unique_ptr<supervisor::DashboardServer> dashboard_;
  bool is_stop_asked_ = false;
  bool is_over_ = false;
};

}  // namespace accel::launcher
