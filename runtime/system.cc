#include "runtime/system.h"

#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <memory>

#include <dirent.h>
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace accel {
namespace {

class RealSystem final : public System {
 public:
  Result<std::string> read_file(const std::string& path, std::size_t limit) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd) return Error(ErrorCode::kFileIo, "cannot open " + path + ": " + errno_text(errno));
    std::string content;
    char buffer[4096];
    while (content.size() < limit) {
      const ssize_t got = ::read(fd.get(), buffer, std::min(sizeof buffer, limit - content.size()));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0)
        return Error(ErrorCode::kFileIo, "cannot read " + path + ": " + errno_text(errno));
      if (got == 0) break;
      content.append(buffer, static_cast<std::size_t>(got));
    }
    return content;
  }

  Result<std::string> read_once(const std::string& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char buffer[4096];
    const ssize_t got = fd ? ::read(fd.get(), buffer, sizeof buffer) : -1;
    if (got < 0) return Error(ErrorCode::kFileIo, "cannot read " + path + ": " + errno_text(errno));
    return std::string(buffer, static_cast<std::size_t>(got));
  }

  std::vector<pid_t> process_ids() override {
    std::vector<pid_t> pids;
    const std::unique_ptr<DIR, int (*)(DIR*)> proc(::opendir("/proc"), &::closedir);
    if (!proc) return pids;
    while (const dirent* entry = ::readdir(proc.get())) {
      const char* end = entry->d_name + std::strlen(entry->d_name);
      pid_t pid = 0;
      const auto parsed = std::from_chars(entry->d_name, end, pid);
      if (parsed.ec == std::errc{} && parsed.ptr == end) pids.push_back(pid);
    }
    return pids;
  }

  UniqueFd open_process(pid_t pid) override {
    return UniqueFd(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
  }

  int signal_process(int pidfd, int signal) override {
    return ::syscall(SYS_pidfd_send_signal, pidfd, signal, nullptr, 0) == 0 ? 0 : -errno;
  }

  int signal_group(pid_t group, int signal) override {
    return ::kill(-group, signal) == 0 ? 0 : -errno;
  }
};

}  // namespace

System& real_system() {
  static RealSystem system;
  return system;
}

}  // namespace accel
