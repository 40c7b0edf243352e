// Supervisor: the life of one job on one node, inside accel-shim.
//
//   state      event                              next       what is done
//   ---------  ---------------------------------  ---------  -------------------------------------
//   idle       start()                            running    generation 0: all workers started
//   idle       start(), the owner drives          parked
//   parked     the owner prepares a generation    prepared   its store listens
//   prepared   the owner starts it                running    all its workers started
//   prepared   the owner stops it                 parked     the owner is told of its end
//   parked     the owner finishes, asks to stop   sweeping   also when prepared
//   running    a worker cannot be started         stopping   it counts as the failure
//   running    a worker ends with 0               running    its descendants may linger
//   running    the last worker ends with 0        lingering
//   running    a worker fails                     stopping   first failure noted, others stopped
//   running    a worker hangs                     running    stacks are taken
//   running    the time for the stacks is over    stopping   the hang is the first failure
//   running    the owner asks to stop             stopping   in the mode it asked for
//   running    the owner is gone                  stopping   SIGKILL
//   running    the lease is over                  stopping   SIGKILL; from prepared: parked
//   stopping   the owner asks again, or is gone   stopping   SIGKILL at once
//   stopping   the owner asked, no worker left    stopping   TERM to descendants that had no signal
//   stopping   no worker and no descendant left   sweeping   after a failure: no worker left
//   stopping   something cannot be killed         sweeping   named in the outcome; no restart
//   lingering  no descendant left                 sweeping
//   lingering  linger is over                     sweeping   TERM, kill_wait, the sweep kills
//   lingering  the owner asks to stop, is gone    sweeping
//   sweeping   nothing found                      draining
//   draining   tails are in                       waiting    if the restart policy says so
//   draining   tails and error files are in       parked     if the owner drives, and goes on
//   draining   the same, or no answer in 2 s      closing    else
//   waiting    the delay is over                  running    the next generation is started
//   waiting    the owner asks to stop, is gone    sweeping   now of everything
//   closing    all output is written              finished
//   closing    no sink moves any more             finished   a notice says what was lost
//   closing    the owner asks to stop, is gone    finished   200 ms later, the same
//   finished   -                                  -          outcome sent; done() is called
//
// A generation starts only when every process of the one before is reaped.
//
// Threads:  everything on the thread that runs the io_context; it is also the one that spawns.
// Source:   tests/fault/, tests/unit/supervisor/; docs/internals/supervision.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <sys/resource.h>

#include "runtime/clock.h"
#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/spawn/fork_server.h"
#include "runtime/system.h"

namespace accel::supervisor {

// How the error files of the workers are read. They may lie on a file server that does not answer: so this runs on a thread
// that nobody waits for, and after `limit` the report goes without them.
struct ErrorFileReader {
  std::function<std::string(const std::string& path)> read;
  std::chrono::milliseconds limit;
};
[[nodiscard]] ErrorFileReader own_error_files();

struct SupervisorOptions {
  JobSpec spec;
  pid_t owner = 0;
  pid_t owner_group = 0;  // the owner's process group, for a worker that shares the terminal
  std::optional<rlimit> worker_open_files;  // RLIMIT_NOFILE of workers; empty: this process's
  std::shared_ptr<ForkServer> forks;        // makes the workers; null: they are programs
  System* system = &real_system();
  ErrorFileReader error_files = own_error_files();
};

class Supervisor {
 public:
  // `send` takes the events for the owner; `done` is called once, after the outcome was given to
  // it.
  Supervisor(boost::asio::io_context& context,
             SupervisorOptions options,
             std::function<void(const HostEvent&)> send,
             std::function<void()> done);
  ~Supervisor();
  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  void start();

  void handle(const HostRequest& request);
  // Kills everything. `why`, unless empty, goes into the report.
  void owner_lost(const std::string& why = {});

  // A child has ended, stopped or goes on (SIGCHLD).
  void children_changed();

  [[nodiscard]] Snapshot snapshot() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accel::supervisor
