// ShimAdopter: takes over the shims that outlived the agent before this one, or finds out how their jobs ended.
//
//   wanted --adopt_shim()--> taken over
//     |  '--its last word is on the disk--> ended, with its outcome
//     |  '--no process of it is left, or none that could be a shim--> lost; what is left is killed
//     '--it does not answer yet, has its old owner still, speaks another protocol: again, until the hold is over
//
// A shim that is stopped, or a user who put something else in its place, costs 10 s of one of the threads and never
// the loop; each try of a job stands in line anew.
//
// Threads:  the one that runs the io_context, and up to kThreads that block in adopt_shim().
// Source:   docs/admin/agent.md "Restarts and upgrades".
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <sys/types.h>

#include <accel/result.h>

#include "runtime/supervisor/owner/worker_host.h"

namespace accel::agent {

class ShimAdopter {
 public:
  static constexpr int kThreads = 16;

  struct Wanted {
    std::string job_id;
    std::string node_id;   // ACCEL_NODE_ID of its processes
    std::string instance;  // ACCEL_JOB_INSTANCE of them; empty: of a job of a build that knew none
    std::string folder;    // where its socket and state file are
    uid_t owner = 0;       // whose folder that is
    std::string token;
    std::string cgroup;                     // that its agent made for it; empty: none
    std::chrono::milliseconds patience{0};  // longer than its hold; then it is killed
  };
  // One of the three.
  struct Found {
    std::unique_ptr<supervisor::WorkerHost> host;
    std::optional<supervisor::HostEvent> last_word;
    std::optional<Error> lost;
    int num_unkillable = 0;     // with `lost`: of its cgroup, what SIGKILL has not ended
    bool is_end_proved = true;  // with `lost`: nothing of it can be left
  };

  explicit ShimAdopter(boost::asio::io_context& loop) : loop_(loop), threads_(kThreads) {}
  // Waits for the tries that run; shims that were just taken over are let go.
  ~ShimAdopter();

  // Calls `done` once, on the loop. `tell` gets what keeps it from being taken over, each time that changes.
  void take(Wanted wanted, std::function<void(Found)> done, std::function<void(const Error&)> tell);

  // The next try for this job is its last: a shim that does not come over then is killed, with all of the job.
  void hurry(const std::string& job_id, const std::string& instance);

 private:
  struct Search;
  void look(std::shared_ptr<Search> search);
  void look_again(std::shared_ptr<Search> search, const Error& why);

  boost::asio::io_context& loop_;
  std::map<std::pair<std::string, std::string>, std::weak_ptr<Search>>
      searches_;  // by job and instance; those that are over lapse
  std::atomic<bool> is_closing_{false};
  boost::asio::thread_pool threads_;
};

}  // namespace accel::agent
