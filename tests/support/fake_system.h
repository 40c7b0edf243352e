// FakeSystem: a machine made of a map of files and a table of processes.
//
// A process ends when it gets SIGKILL, unless it is in `unkillable`. Its pidfd is a descriptor of
// /dev/null; which process it stands for is remembered by its number.
#pragma once

#include <csignal>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fcntl.h>

#include "runtime/system.h"

namespace accel::test {

class FakeSystem : public System {
 public:
  std::map<std::string, std::string> files;
  std::set<pid_t> unkillable;
  std::set<std::string> paths_read;
  std::vector<std::pair<pid_t, int>> signals;  // in the order sent

  void add_process(pid_t pid,
                   pid_t parent,
                   std::uint64_t start_time,
                   const std::string& environ = "",
                   char state = 'S') {
    const std::string folder = "/proc/" + std::to_string(pid);
    const std::string id = std::to_string(pid);
    files[folder + "/stat"] = id + " (a (b) c) " + state + " " + std::to_string(parent) + " " + id +
                              " " + id + " 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 " +
                              std::to_string(start_time) + " 0 0\n";
    files[folder + "/environ"] = environ;
    files[folder + "/comm"] = "a (b) c\n";
    files[folder + "/cmdline"] = std::string("work\0er", 7);
    pids_.insert(pid);
  }

  void remove_process(pid_t pid) {
    files.erase("/proc/" + std::to_string(pid) + "/stat");
    pids_.erase(pid);
  }

  Result<std::string> read_file(const std::string& path, std::size_t) override {
    paths_read.insert(path);
    const auto found = files.find(path);
    if (found == files.end()) return Error(ErrorCode::kFileIo, "no file " + path);
    return found->second;
  }

  std::vector<pid_t> process_ids() override { return {pids_.begin(), pids_.end()}; }

  UniqueFd open_process(pid_t pid) override {
    if (!pids_.contains(pid)) return UniqueFd();
    UniqueFd fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    handles_[fd.get()] = pid;
    return fd;
  }

  int signal_process(int pidfd, int signal) override {
    const pid_t pid = handles_.at(pidfd);
    signals.emplace_back(pid, signal);
    if (signal == SIGKILL && !unkillable.contains(pid)) remove_process(pid);
    return 0;
  }

  int signal_group(pid_t group, int signal) override {
    signals.emplace_back(-group, signal);
    return 0;
  }

 private:
  std::set<pid_t> pids_;
  std::map<int, pid_t> handles_;
};

}  // namespace accel::test
