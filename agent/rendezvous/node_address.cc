#include "agent/rendezvous/node_address.h"

#include <algorithm>
#include <cctype>
#include <filesystem>

#include <arpa/inet.h>
#include <sched.h>
#include <unistd.h>

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

// The address that packets to the endpoint leave from: by it other nodes reach us.
std::string own_address_towards(const TcpAddress& endpoint) {
  const SocketAddress to = make_socket_address(endpoint);
  const UniqueFd probe(::socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[INET6_ADDRSTRLEN] = {};
  if (::connect(probe.get(), to.get(), to.size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return endpoint.host;
  }
  const void* bytes =
      own.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(&own)->sin_addr)
          : static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr);
  return ::inet_ntop(own.ss_family, bytes, text, sizeof text);
}

std::string host_name() {
  char name[128] = {};
  ::gethostname(name, sizeof name - 1);
  return *name == '\0' ? "localhost" : name;
}

std::string endpoint_text(const std::string& host, int port) {
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
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
