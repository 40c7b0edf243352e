// Preflight: runs the checks of a job one after the other, before any worker, until one fails.
//
//   start --> check 1 --passed--> check 2 --passed--> ... --> done: nothing
//                '--its limit, another code than 0, no program--> done: which, and why
//
// A check runs as the workers do: their user, folder and environment, a session of its own, nothing on stdin. What it
// writes is kept for the failure's text alone. One that reaches its limit is killed with its process group and
// counts as ended, whether it does end or not; what it leaves behind is for the caller to sweep.
//
// Threads:  the one that runs the io_context; nothing blocks.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/spawn/exit_report.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

class Preflight {
 public:
  // `done` is called once, from the loop. Errors  kPreflightFailed: names the check, why, and its last lines.
  // `base`: what the checks have in common, all but their arguments and descriptors.
  Preflight(boost::asio::io_context& context,
            System& system,
            const std::vector<PreflightCheck>& checks,
            SpawnRequest base,
            std::function<void(Result<void>)> done);
  ~Preflight();  // kills what runs; `done` is not called any more
  Preflight(const Preflight&) = delete;
  Preflight& operator=(const Preflight&) = delete;

  void start();

  // Whether the child `pid`, which has ended and is not reaped, is the check that runs. Then it is reaped.
  bool take_end(pid_t pid);

 private:
  void run_next();
  void read();
  void read_what_is_there();
  void on_limit();
  void kill();
  void fail(const std::string& why);
  void finish(Result<void> result);
  [[nodiscard]] const PreflightCheck& check() const { return checks_[at_]; }

  boost::asio::io_context& context_;
  System& system_;
  const std::vector<PreflightCheck>& checks_;
  SpawnRequest request_;
  std::function<void(Result<void>)> done_;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
  std::size_t at_ = 0;
  std::optional<SpawnedProcess> process_;
  boost::asio::posix::stream_descriptor output_;
  boost::asio::steady_timer limit_;
  std::string tail_;
};

}  // namespace accel::supervisor
