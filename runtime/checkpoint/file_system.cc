// The real file system behind a checkpoint, and errors that say which device and how many bytes.

#include "runtime/checkpoint/file_system.h"

#include <cerrno>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <accel/error.h>

#include "runtime/checkpoint/folder_exchange.h"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what, const fs::path& path, int error_number) {
  if (error_number == ENOSPC || error_number == EDQUOT) {
    const char* reason = error_number == EDQUOT ? "the disk quota is used up" : "the disk is full";
    throw Error(ErrorCode::kDiskFull,
                std::string(reason) + ": cannot " + what + " " + path.string() + " on " +
                    device_text(path));
  }
  throw Error(ErrorCode::kFileIo,
              "cannot " + what + " " + path.string() + ": " + errno_text(error_number));
}

class RealFileSystem final : public FileSystem {
 public:
  UniqueFd create_file(const fs::path& path) override {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (!fd) fail("create", path, errno);
    return fd;
  }

  void reserve(int fd, std::uint64_t bytes, const fs::path& path) override {
    const std::string what = "reserve " + std::to_string(bytes) + " bytes for";
    if (bytes == 0) return;
    while (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
      if (errno == EINTR) continue;
      if (errno != EOPNOTSUPP && errno != ENOSYS) fail(what, path, errno);
      if (::ftruncate(fd, static_cast<off_t>(bytes)) != 0) fail(what, path, errno);
      return;
    }
  }

  UniqueFd open_file(const fs::path& path) override {
    UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (!fd) fail("open", path, errno);
    return fd;
  }

  void write_at(int fd,
                std::span<const std::byte> bytes,
                std::uint64_t offset,
                const fs::path& path) override {
    while (!bytes.empty()) {
      const ssize_t n = ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write " + std::to_string(bytes.size()) + " bytes to", path, errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
      offset += static_cast<std::uint64_t>(n);
    }
  }

  void write(int fd, std::span<const std::byte> bytes, const fs::path& path) override {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail("write " + std::to_string(bytes.size()) + " bytes to", path, errno);
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
  }

  // The kernel keeps an error of the device for the next fsync of the file.
  void start_write_out(int fd, std::uint64_t offset, std::uint64_t bytes) noexcept override {
    if (bytes == 0) return;  // would mean all that follows
    (void)::sync_file_range(
        fd, static_cast<off_t>(offset), static_cast<off_t>(bytes), SYNC_FILE_RANGE_WRITE);
  }

  void sync_file(int fd, const fs::path& path) override {
    if (::fsync(fd) != 0) fail("sync", path, errno);
  }

  void make_folder(const fs::path& path) override {
    std::error_code error;
    fs::create_directories(path, error);
    if (error) fail("create the folder", path, error.value());
  }

  void sync_folder(const fs::path& path) override {
    const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!fd) fail("open the folder", path, errno);
    // Some network file systems cannot sync a folder and say so with EINVAL: their names are
    // durable.
    if (::fsync(fd.get()) != 0 && errno != EINVAL) fail("sync the folder", path, errno);
  }

  void rename(const fs::path& from, const fs::path& to) override {
    if (::rename(from.c_str(), to.c_str()) != 0) {
      fail("give the name " + to.string() + " to", from, errno);
    }
  }

  void exchange(const fs::path& a, const fs::path& b) override {
    if (::syscall(SYS_renameat2, AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE) == 0)
      return;
    if (errno != EINVAL && errno != ENOSYS) fail("exchange " + b.string() + " and", a, errno);
    exchange_by_renames(*this, a, b);
  }

  void remove(const fs::path& path) override {
    std::error_code error;
    fs::remove_all(path, error);
    if (error) fail("remove", path, error.value());
  }
};

// The mount of device `device`, from lines such as
// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw" (proc(5)).
std::string mount_text(dev_t device) {
  const std::string wanted = std::to_string(major(device)) + ":" + std::to_string(minor(device));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, numbers, root, point, word, type, source;
    words >> id >> parent >> numbers >> root >> point;
    if (numbers != wanted) continue;
    while (words >> word && word != "-") {
    }
    words >> type >> source;
    return source + " at " + point + " (" + type;
  }
  return "device " + wanted + " (";
}

}  // namespace

FileSystem& real_file_system() {
  // Never destroyed: a save in the background may end after the statics of other files have.
  static RealFileSystem& file_system = *new RealFileSystem;
  return file_system;
}

std::string device_text(const fs::path& path) {
  fs::path existing = fs::absolute(path);
  struct stat status {};
  while (::stat(existing.c_str(), &status) != 0) {
    if (!existing.has_relative_path()) return "an unknown device";
    existing = existing.parent_path();
  }
  std::string text = mount_text(status.st_dev);
  struct statvfs space {};
  if (::statvfs(existing.c_str(), &space) == 0) {
    if (text.back() != '(') text += ", ";
    text += std::to_string(static_cast<unsigned long long>(space.f_bavail) * space.f_frsize) +
            " bytes free";
  }
  return text + ")";
}

}  // namespace accel::checkpoint
