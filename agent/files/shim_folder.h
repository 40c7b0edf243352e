// ShimFolder: where the shims of one user have their sockets, below a folder that everybody can enter.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include <accel/result.h>

#include "agent/access/user_account.h"

namespace accel::agent {

// Makes <top>, root's and for everybody (0711), and <top>/<uid>, which shims and workers of that user alone can enter;
// gives the latter. Errors  kFileIo, kLogUnwritable.
[[nodiscard]] Result<std::string> prepare_shim_folder(const std::string& top,
                                                      const UserAccount& user,
                                                      bool changes_user);

}  // namespace accel::agent
