// LogFolder: the folder of one user below the agent's log_dir, and how an agent makes folders.
//
// Threads:  plain functions.
#pragma once

#include <string>

#include <sys/types.h>

#include <accel/result.h>

#include "agent/access/user_account.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// The folder, made when it is missing. A link in its place is an error, not a way elsewhere. Errors  kLogUnwritable.
[[nodiscard]] Result<UniqueFd> make_folder(int parent, const std::string& path, mode_t mode);

// Makes <log_dir>/<uid>, of mode 0700 and, when the agent runs jobs as other users, theirs. Errors  kLogUnwritable.
[[nodiscard]] Result<void> prepare_log_folder(const std::string& log_dir,
                                              const UserAccount& user,
                                              bool changes_user);

}  // namespace accel::agent
