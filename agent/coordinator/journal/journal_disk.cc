#include "agent/coordinator/journal/journal_disk.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>

#include <fcntl.h>
#include <unistd.h>

#include "runtime/write_all.h"

namespace accel::agent {
namespace {

Error failed(const char* what, const std::string& path) {
  const int error = errno;
  const bool is_full = error == ENOSPC || error == EDQUOT;
  return Error(is_full ? ErrorCode::kDiskFull : ErrorCode::kFileIo,
               std::string("cannot ") + what + ' ' + path + ": " + errno_text(error));
}

class RealJournalDisk final : public JournalDisk {
 public:
  Result<std::string> read(const std::string& path) override {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) {
      if (errno == ENOENT) return std::string();
      return failed("open", path);
    }
    std::string content;
    char block[1 << 16];
    while (true) {
      const ssize_t got = ::read(fd.get(), block, sizeof block);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return failed("read", path);
      if (got == 0) return content;
      content.append(block, static_cast<std::size_t>(got));
    }
  }

  Result<UniqueFd> create(const std::string& path) override {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) return failed("create", path);
    return fd;
  }

  Result<void> write(int fd, std::string_view bytes) override {
    if (write_all(fd, bytes) != 0) return failed("write", "the journal");
    return {};
  }

  Result<void> truncate(int fd, std::size_t bytes) override {
    const auto end = static_cast<off_t>(bytes);
    const bool done = ::ftruncate(fd, end) == 0 && ::lseek(fd, end, SEEK_SET) >= 0;
    if (!done) return failed("cut", "the journal");
    return {};
  }

  Result<void> sync(int fd) override {
    if (::fdatasync(fd) != 0) return failed("sync", "the journal");
    return {};
  }

  Result<void> rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) != 0) return failed("rename", from);
    return {};
  }

  Result<void> sync_folder(const std::string& path) override {
    const std::string folder = std::filesystem::path(path).parent_path().string();
    UniqueFd fd(::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd || ::fsync(fd.get()) != 0) return failed("sync", folder);
    return {};
  }
};

}  // namespace

JournalDisk& real_journal_disk() {
  static RealJournalDisk disk;
  return disk;
}

}  // namespace accel::agent
