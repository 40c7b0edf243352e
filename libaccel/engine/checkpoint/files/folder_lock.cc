#include "libaccel/engine/checkpoint/files/folder_lock.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <accel/error.h>

namespace accel::checkpoint {
namespace {

bool has_name(int fd, const std::filesystem::path& name) {
  struct stat open {};
  struct stat named {};
  return ::fstat(fd, &open) == 0 && ::stat(name.c_str(), &named) == 0 &&
         open.st_dev == named.st_dev && open.st_ino == named.st_ino;
}

UniqueFd open_folder(const std::filesystem::path& folder) {
  return UniqueFd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

Error cannot_tell(const std::filesystem::path& folder) {
  return Error(ErrorCode::kFileIo,
               "cannot tell whether " + folder.string() + " is in use: " + errno_text(errno));
}

}  // namespace

FolderLock FolderLock::wait(const std::filesystem::path& folder) {
  UniqueFd fd = open_folder(folder);
  if (!fd) throw cannot_tell(folder);
  while (::flock(fd.get(), LOCK_EX) != 0)
    if (errno != EINTR) throw cannot_tell(folder);
  return FolderLock(std::move(fd));
}

std::optional<FolderLock> FolderLock::take(const std::filesystem::path& folder) {
  UniqueFd fd = open_folder(folder);
  if (!fd && errno != ENOENT) throw cannot_tell(folder);
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  // Another one may have removed it, and made it anew, before it was locked.
  if (fd && !has_name(fd.get(), folder)) return std::nullopt;
  return FolderLock(std::move(fd));
}

}  // namespace accel::checkpoint
