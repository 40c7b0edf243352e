#include "agent/files/log_folder.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace accel::agent {

Result<UniqueFd> make_folder(int parent, const std::string& path, mode_t mode) {
  if (::mkdirat(parent, path.c_str(), mode) != 0 && errno != EEXIST) {
    return Error(ErrorCode::kLogUnwritable, "cannot create " + path + ": " + errno_text(errno));
  }
  UniqueFd fd(::openat(parent, path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd)
    return Error(ErrorCode::kLogUnwritable, "cannot open " + path + ": " + errno_text(errno));
  return fd;
}

Result<void> prepare_log_folder(const std::string& log_dir,
                                const UserAccount& user,
                                bool changes_user) {
  auto top = make_folder(AT_FDCWD, log_dir, 0711);
  if (!top) return std::move(top).error();
  auto own = make_folder(top->get(), std::to_string(user.credentials.uid), 0700);
  if (!own) return std::move(own).error();
  if (changes_user && ::fchown(own->get(), user.credentials.uid, user.credentials.gid) != 0) {
    return Error(ErrorCode::kLogUnwritable,
                 "cannot give the log folder to " + user.name + ": " + errno_text(errno));
  }
  return {};
}

}  // namespace accel::agent
