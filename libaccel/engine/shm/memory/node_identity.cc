#include "libaccel/engine/shm/memory/node_identity.h"

#include <array>
#include <cstdlib>
#include <fstream>

#include <unistd.h>

namespace accel::shm {
namespace {

// "pid:[4026531836]", or nothing.
std::string namespace_of(const char* kind) {
  std::array<char, 64> target{};
  const std::string path = std::string("/proc/self/ns/") + kind;
  const ssize_t size = ::readlink(path.c_str(), target.data(), target.size());
  return size <= 0 ? std::string() : std::string(target.data(), static_cast<std::size_t>(size));
}

}  // namespace

Result<NodeIdentity> read_node_identity() {
  NodeIdentity identity;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> identity.boot_id;
  if (const char* node = std::getenv(kTestNodeVariable);
      node != nullptr && !identity.boot_id.empty())
    identity.boot_id += std::string(".") + node;
  identity.pid_namespace = namespace_of("pid");
  identity.user_namespace = namespace_of("user");
  if (!identity.boot_id.empty() && !identity.pid_namespace.empty() &&
      !identity.user_namespace.empty())
    return identity;
  return Error(ErrorCode::kUnsupported, "/proc does not say which node this process is on");
}

std::string to_text(const NodeIdentity& identity) {
  return identity.boot_id + "/" + identity.pid_namespace + "/" + identity.user_namespace;
}

std::string difference(const NodeIdentity& one, const NodeIdentity& other) {
  if (one.boot_id != other.boot_id) return "another kernel";
  if (one.pid_namespace != other.pid_namespace) return "another pid namespace";
  if (one.user_namespace != other.user_namespace) return "another user namespace";
  return {};
}

Result<NodeIdentity> parse_node_identity(const std::string& text) {
  const std::size_t first = text.find('/');
  const std::size_t second = first == std::string::npos ? first : text.find('/', first + 1);
  if (second == std::string::npos || text.find(' ') != std::string::npos)
    return Error(ErrorCode::kInvalidArgument, "'" + text + "' names no node");
  return NodeIdentity{.boot_id = text.substr(0, first),
                      .pid_namespace = text.substr(first + 1, second - first - 1),
                      .user_namespace = text.substr(second + 1)};
}

}  // namespace accel::shm
