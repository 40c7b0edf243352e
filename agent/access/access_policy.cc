#include "agent/access/access_policy.h"

#include <algorithm>

namespace accel::agent {
namespace {

constexpr uid_t kFirstPersonalUid = 1000;  // below it: system users, which no remote caller becomes

Error refused(std::string message, std::string remedy = {}) {
  return Error(ErrorCode::kAgentRefused, std::move(message), std::move(remedy));
}

}  // namespace

std::string_view cluster_of(std::string_view uri) {
  constexpr std::string_view kScheme = "accel://";
  if (!uri.starts_with(kScheme)) return {};
  const std::string_view rest = uri.substr(kScheme.size());
  const std::size_t end = rest.find('/');
  return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

std::optional<Role> parse_role(std::string_view text) {
  if (text == "node") return Role::kNode;
  if (text == "launcher") return Role::kLauncher;
  if (text == "operator") return Role::kOperator;
  if (text == "viewer") return Role::kViewer;
  return std::nullopt;
}

bool admits(Place place, Role role) {
  if (role == Role::kNode) return true;
  return role == Role::kLauncher && (place == Place::kJobSession || place == Place::kJobHost);
}

std::string_view roles_at(Place place) {
  return admits(place, Role::kLauncher) ? "launcher or node" : "node";
}

std::optional<CertificateName> parse_certificate_name(std::string_view uri,
                                                      std::string_view cluster) {
  const std::string prefix = "accel://" + std::string(cluster) + "/";
  if (!uri.starts_with(prefix)) return std::nullopt;
  const std::string_view rest = uri.substr(prefix.size());
  const std::size_t slash = rest.find('/');
  if (slash == std::string_view::npos || !is_valid_id(rest.substr(slash + 1))) return std::nullopt;
  const auto role = parse_role(rest.substr(0, slash));
  if (!role) return std::nullopt;
  return CertificateName{*role, std::string(uri)};
}

bool AccessPolicy::allows(const Caller& caller, Deed deed, uid_t owner) const {
  switch (caller.role) {
    case Role::kLocal:
      return caller.uid == owner || caller.uid == 0 || caller.uid == agent_uid_;
    case Role::kOperator:
      return true;
    case Role::kViewer:
      return deed == Deed::kSee;
    case Role::kNode:
    case Role::kLauncher:
      return false;
  }
  return false;
}

bool AccessPolicy::allows_operation(const Caller& caller) const {
  if (caller.role == Role::kLocal) return caller.uid == 0 || caller.uid == agent_uid_;
  return caller.role == Role::kOperator;
}

Result<std::string> AccessPolicy::user_for(const Caller& caller,
                                           const std::string& caller_user,
                                           const std::string& asked_user) const {
  if (caller.role == Role::kLocal) {
    const auto& allowed = config_.allow_users;
    if (!allowed.empty() &&
        std::find(allowed.begin(), allowed.end(), caller_user) == allowed.end()) {
      return refused("user " + caller_user + " is not in allow_users");
    }
    return caller_user;
  }
  if (caller.role != Role::kOperator) return refused(caller.name + " may not start jobs");
  const auto users = config_.remote_users.find(caller.name);
  if (users == config_.remote_users.end() ||
      std::find(users->second.begin(), users->second.end(), asked_user) == users->second.end()) {
    return refused(caller.name + " may not start jobs as user '" + asked_user + "'",
                   "add the pair to remote_users of the agent's configuration");
  }
  return asked_user;
}

Result<void> AccessPolicy::check_cluster_user(const std::string& user, uid_t uid) const {
  const auto& allowed = config_.allow_users;
  if (!allowed.empty() && std::find(allowed.begin(), allowed.end(), user) == allowed.end()) {
    return refused("user " + user + " is not in allow_users");
  }
  if (uid < kFirstPersonalUid) {
    return refused(
        "uid " + std::to_string(uid) + " is a system user: jobs of many nodes never run as one",
        "submit the job as a user with a uid of 1000 or more");
  }
  return check_uid(uid, /*is_remote=*/true);
}

Result<void> AccessPolicy::check_uid(uid_t uid, bool is_remote) const {
  if (is_remote && uid < kFirstPersonalUid) {
    return refused("uid " + std::to_string(uid) +
                   " is a system user: remote callers never run jobs as one");
  }
  if (agent_uid_ != 0 && uid != agent_uid_) {
    return refused("this agent runs as uid " + std::to_string(agent_uid_) +
                   " and serves no other user");
  }
  if (uid == 0 && !config_.allow_root) {
    return refused("jobs do not run as root here",
                   "run it as another user, or set allow_root in the agent's configuration");
  }
  return {};
}

}  // namespace accel::agent
