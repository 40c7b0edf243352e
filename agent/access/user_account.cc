#include "agent/access/user_account.h"

#include <array>

#include <grp.h>
#include <pwd.h>

namespace accel::agent {
namespace {

UserAccount describe(const passwd& entry) {
  UserAccount account = {
      .name = entry.pw_name, .home = entry.pw_dir, .shell = entry.pw_shell, .credentials = {}};
  account.credentials.uid = entry.pw_uid;
  account.credentials.gid = entry.pw_gid;
  int count = 64;
  std::vector<gid_t> groups(static_cast<std::size_t>(count));
  if (::getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count) < 0) {
    groups.resize(static_cast<std::size_t>(count));
    ::getgrouplist(entry.pw_name, entry.pw_gid, groups.data(), &count);
  }
  groups.resize(static_cast<std::size_t>(count));
  account.credentials.groups = std::move(groups);
  return account;
}

}  // namespace

Result<UserAccount> find_user(uid_t uid) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16 * 1024> buffer{};
  if (::getpwuid_r(uid, &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr) {
    return Error(ErrorCode::kAgentRefused,
                 "uid " + std::to_string(uid) + " is not in the user database");
  }
  return describe(entry);
}

Result<UserAccount> find_user(const std::string& name) {
  passwd entry{};
  passwd* found = nullptr;
  std::array<char, 16 * 1024> buffer{};
  if (::getpwnam_r(name.c_str(), &entry, buffer.data(), buffer.size(), &found) != 0 ||
      found == nullptr) {
    return Error(ErrorCode::kAgentRefused, "user '" + name + "' is not in the user database");
  }
  return describe(entry);
}

}  // namespace accel::agent
