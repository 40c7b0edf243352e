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

}  // namespace

std::optional<FolderLock> FolderLock::take(const std::filesystem::path& folder) {
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd && errno != ENOENT) {
    throw Error(ErrorCode::kFileIo,
                "cannot tell whether " + folder.string() + " is in use: " + errno_text(errno));
  }
  if (fd && ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) return std::nullopt;
  // Another one may have removed it, and made it anew, before it was locked.
  if (fd && !has_name(fd.get(), folder)) return std::nullopt;
  return FolderLock(std::move(fd));
}

}  // namespace accel::checkpoint
