#include "agent/files/state_folder.h"

#include <cerrno>
#include <filesystem>

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

namespace accel::agent {
namespace {

Result<void> make_folder(const std::string& path, mode_t mode) {
  std::error_code failure;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), failure);
  if (::mkdir(path.c_str(), mode) != 0 && errno != EEXIST) {
    return Error(ErrorCode::kFileIo, "cannot create " + path + ": " + errno_text(errno));
  }
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    return Error(ErrorCode::kFileIo, path + " is not a folder");
  }
  // A folder that somebody else owns or may write to is no place for an agent's state.
  if (info.st_uid != ::geteuid() || (info.st_mode & 0022) != 0) {
    return Error(ErrorCode::kFileIo,
                 path + " belongs to another user, or others may write to it",
                 "give the agent a folder of its own: mode 0755 at most, owned by uid " +
                     std::to_string(::geteuid()));
  }
  return {};
}

std::string lock_holder(int fd) {
  char text[64] = {};
  const ssize_t got = ::pread(fd, text, sizeof text - 1, 0);
  return got > 0 ? std::string(text, static_cast<std::size_t>(got)) : "unknown";
}

}  // namespace

Result<UniqueFd> take_state_folder(const AgentConfig& config) {
  // 0711: users reach their own log folder below it, and nothing else.
  if (auto made = make_folder(config.state_dir, 0711); !made) return std::move(made).error();
  const bool is_private = ::geteuid() != 0 && config.socket_group.empty();
  if (auto made = make_folder(config.runtime_dir, is_private ? 0700 : 0755); !made)
    return std::move(made).error();
  const std::string path = config.state_dir + "/lock";
  UniqueFd lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock) return Error(ErrorCode::kFileIo, "cannot open " + path + ": " + errno_text(errno));
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return Error(ErrorCode::kAgentRunning,
                 "accel-agent with pid " + lock_holder(lock.get()) + " uses " + config.state_dir +
                     " already");
  }
  const std::string pid = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 || ::pwrite(lock.get(), pid.data(), pid.size(), 0) < 0) {
    return Error(ErrorCode::kFileIo, "cannot write " + path + ": " + errno_text(errno));
  }
  return lock;
}

std::optional<gid_t> find_group(const std::string& name) {
  const group* found = ::getgrnam(name.c_str());
  return found == nullptr ? std::nullopt : std::optional(found->gr_gid);
}

Result<SocketAccess> choose_socket_access(
    const std::string& socket_group,
    uid_t agent_uid,
    const std::function<std::optional<gid_t>(const std::string&)>& find_group) {
  constexpr mode_t kOwner = 0600;
  constexpr mode_t kGroup = 0660;
  constexpr mode_t kEverybody = 0666;
  if (socket_group == "*") return SocketAccess{kEverybody, std::nullopt};
  if (socket_group.empty() && agent_uid != 0) return SocketAccess{kOwner, std::nullopt};
  const auto group = find_group(socket_group.empty() ? kDefaultSocketGroup : socket_group);
  if (group) return SocketAccess{kGroup, group};
  if (socket_group.empty()) return SocketAccess{kOwner, std::nullopt};
  return Error(ErrorCode::kInvalidArgument,
               "there is no group '" + socket_group + "' (socket_group)",
               "make it with `groupadd`, or name another one");
}

Result<void> open_socket(const std::string& path, const SocketAccess& access) {
  constexpr uid_t kSameOwner = static_cast<uid_t>(-1);
  if (access.group && ::chown(path.c_str(), kSameOwner, *access.group) != 0) {
    return Error(ErrorCode::kFileIo, "cannot give " + path + " to its group: " + errno_text(errno));
  }
  if (::chmod(path.c_str(), access.mode) != 0) {
    return Error(ErrorCode::kFileIo, "cannot set the mode of " + path + ": " + errno_text(errno));
  }
  return {};
}

}  // namespace accel::agent
