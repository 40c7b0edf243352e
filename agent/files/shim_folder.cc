#include "agent/files/shim_folder.h"

#include <cerrno>

#include <fcntl.h>
#include <unistd.h>

#include "agent/files/log_folder.h"

namespace accel::agent {

Result<std::string> prepare_shim_folder(const std::string& top,
                                        const UserAccount& user,
                                        bool changes_user) {
  auto all = make_folder(AT_FDCWD, top, 0711);
  if (!all) return std::move(all).error();
  const std::string name = std::to_string(user.credentials.uid);
  auto own = make_folder(all->get(), name, 0700);
  if (!own) return std::move(own).error();
  if (changes_user && ::fchown(own->get(), user.credentials.uid, user.credentials.gid) != 0) {
    return Error(ErrorCode::kFileIo,
                 "cannot give the folder of shims to " + user.name + ": " + errno_text(errno));
  }
  return top + "/" + name;
}

}  // namespace accel::agent
