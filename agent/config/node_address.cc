#include "agent/config/node_address.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <arpa/inet.h>
#include <sched.h>
#include <unistd.h>

#include "runtime/system.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

SocketAddress make_socket_address(const TcpAddress& address) {
  SocketAddress made;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&made.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&made.storage);
  if (::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    made.size = sizeof *v4;
  } else {
    ::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    made.size = sizeof *v6;
  }
  return made;
}

std::string host_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bytes =
      address->sa_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
          : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  const char* made = ::inet_ntop(address->sa_family, bytes, text, sizeof text);
  return made == nullptr ? "" : made;
}

std::string source_towards(const TcpAddress& to) {
  const SocketAddress target = make_socket_address(to);
  const UniqueFd probe(::socket(target.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  auto* address = reinterpret_cast<sockaddr*>(&own);
  if (::connect(probe.get(), target.get(), target.size) != 0 ||
      ::getsockname(probe.get(), address, &size) != 0) {
    return "";
  }
  return host_of(address);
}

std::string own_address_towards(const TcpAddress& endpoint) {
  const std::string source = source_towards(endpoint);
  return source.empty() ? endpoint.host : source;
}

std::string boot_id() {
  const auto read = real_system().read_file("/proc/sys/kernel/random/boot_id");
  std::string text = read ? *read : "";
  while (text.ends_with('\n')) text.pop_back();
  return text;
}

int count_slots() {
  int num_gpus = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/dev", ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string number = name.starts_with("nvidia") ? name.substr(6) : "";
    const bool is_gpu = !number.empty() && std::all_of(number.begin(), number.end(), [](char c) {
      return std::isdigit(static_cast<unsigned char>(c)) != 0;
    });
    num_gpus += is_gpu ? 1 : 0;
  }
  if (num_gpus > 0) return num_gpus;
  cpu_set_t cores;
  CPU_ZERO(&cores);
  if (::sched_getaffinity(0, sizeof cores, &cores) == 0) return std::max(1, CPU_COUNT(&cores));
  return std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
}

}  // namespace accel::agent
