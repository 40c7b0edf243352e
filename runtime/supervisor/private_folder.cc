#include "runtime/supervisor/private_folder.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::supervisor {

Result<PrivateFolder> PrivateFolder::create(const std::string& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return PrivateFolder(path);
  return Error(ErrorCode::kFileIo,
               "cannot make the private folder " + path + ": " + errno_text(errno));
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::exchange(other.path_, {})) {}

PrivateFolder::~PrivateFolder() {
  remove_private_folder(path_);
}

// remove_all() opens each folder without following links and removes by descriptor.
void remove_private_folder(const std::string& path) {
  struct stat info = {};
  if (path.empty() || ::lstat(path.c_str(), &info) != 0) return;
  if (!S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return;
  std::error_code ignored;  // what is left is in a folder that only its user can enter
  std::filesystem::remove_all(path, ignored);
}

std::string read_own_file(const std::string& path, std::size_t limit) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  struct stat info = {};
  if (!fd || ::fstat(fd.get(), &info) != 0) return {};
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid()) return {};
  std::string content(std::min(limit, static_cast<std::size_t>(info.st_size)), '\0');
  std::size_t size = 0;
  while (size < content.size()) {
    const ssize_t got = ::read(fd.get(), content.data() + size, content.size() - size);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    size += static_cast<std::size_t>(got);
  }
  content.resize(size);
  return content;
}

}  // namespace accel::supervisor
