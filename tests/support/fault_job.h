// fault_job: real launchers, shims and workers for the fault tests.
//
// Every test gets a token of its own. It stands in the environment of everything the test starts
// and in the arguments of every worker, so that processes of the test are found in /proc whatever
// they did to get away.
//
// Waiting is for conditions, with a bound far above what is ever needed; no test asserts a time.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <sys/types.h>

#include "runtime/supervisor/owner/worker_host.h"

namespace accel::test {

inline constexpr std::chrono::seconds kPatience{30};

// A string that no other process on this machine has.
[[nodiscard]] std::string unique_token();

// Live processes (no zombies) with `token` in their arguments or environment, as "pid command".
[[nodiscard]] std::vector<std::string> processes_with(const std::string& token);

// Runs `condition` until it holds. False when it still does not after kPatience.
[[nodiscard]] bool eventually(const std::function<bool()>& condition);

[[nodiscard]] std::string build_path(const std::string& file);

// The arguments that make this test binary behave as a worker: see fault_worker.cc for the modes.
[[nodiscard]] std::vector<std::string> worker_command(const std::string& mode,
                                                      const std::string& token);

// A job of `num_workers` such workers, with short times and the token as its id.
[[nodiscard]] supervisor::JobSpec make_job(const std::string& mode,
                                           const std::string& token,
                                           int num_workers = 1);

struct JobRun {
  std::optional<supervisor::JobOutcome> outcome;
  std::optional<Error> error;
  std::vector<supervisor::HostEvent> events;

  // Events of one kind, in order.
  template <typename T>
  [[nodiscard]] std::vector<T> all() const {
    std::vector<T> found;
    for (const auto& event : events) {
      if (const T* match = std::get_if<T>(&event)) found.push_back(*match);
    }
    return found;
  }
};

// Runs the job under a shim until it ends. `on_event` may send requests; it is called for each
// event.
[[nodiscard]] JobRun run_job(
    const supervisor::JobSpec& spec,
    const std::function<void(supervisor::WorkerHost&, const supervisor::HostEvent&)>& on_event =
        {});

// An accel-launch with its output in a pipe.
class LaunchProcess {
 public:
  LaunchProcess(std::vector<std::string> arguments,
                const std::string& token,
                const EnvMap& environment = {});  // beside PATH and what marks the test
  ~LaunchProcess();                               // kills it, should it still run
  LaunchProcess(const LaunchProcess&) = delete;
  LaunchProcess& operator=(const LaunchProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }

  // Reads until the output has `count` lines that begin with `start`; those lines without it.
  // Fewer when the output ended or patience did.
  [[nodiscard]] std::vector<std::string> wait_for_lines(const std::string& start,
                                                        std::size_t count);

  void signal(int number) const;

  // The status as a shell shows it: the exit code, or 128 + signal. -1 when it did not end in time.
  [[nodiscard]] int wait();

  // Everything it wrote to stdout and stderr so far.
  [[nodiscard]] const std::string& output() const { return output_; }

  // The pid of its shim; 0 when it has none.
  [[nodiscard]] pid_t shim() const;

 private:
  bool read_some();

  pid_t pid_ = -1;
  UniqueFd output_fd_;
  std::string output_;
  std::optional<int> status_;
};

}  // namespace accel::test
