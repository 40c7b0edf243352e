// UserAccount: what the system's user database says about a user.
//
// Threads:  looks at files or asks a directory service: may block; UserDirectory asks beside the loop, where jobs are served.
#pragma once

#include <string>

#include <accel/result.h>

#include "runtime/supervisor/spawn/spawner.h"

namespace accel::agent {

struct UserAccount {
  std::string name;
  std::string home;
  std::string shell;
  supervisor::Credentials credentials;
};

// Errors  kAgentRefused: there is no such user.
[[nodiscard]] Result<UserAccount> find_user(uid_t uid);
[[nodiscard]] Result<UserAccount> find_user(const std::string& name);

}  // namespace accel::agent
