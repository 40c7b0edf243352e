#include "libaccel/engine/remote/own_address.h"

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include <ifaddrs.h>
#include <netdb.h>
#include <sys/socket.h>

#include <accel/error.h>

#include "runtime/unique_fd.h"

namespace accel::sharding {
namespace {

Result<std::string> numeric(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  const int status =
      ::getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST);
  if (status == 0) return std::string(text.data());
  return Error(ErrorCode::kProcessGroup,
               std::string("an own address cannot be written: ") + ::gai_strerror(status));
}

std::string value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value == nullptr ? std::string() : std::string(value);
}

}  // namespace

Result<std::string> address_of_interface(const std::string& interface) {
  ifaddrs* listed = nullptr;
  if (::getifaddrs(&listed) != 0)
    return Error(ErrorCode::kProcessGroup, "no list of interfaces: " + errno_text(errno));
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> all(listed, ::freeifaddrs);
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = listed; entry != nullptr; entry = entry->ifa_next) {
      if (entry->ifa_addr == nullptr || entry->ifa_addr->sa_family != family ||
          interface != entry->ifa_name)
        continue;
      return numeric(entry->ifa_addr,
                     family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    }
  }
  return Error(ErrorCode::kEnvInvalid,
               "GLOO_SOCKET_IFNAME names '" + interface + "', which has no address on this node");
}

// A datagram socket that is connected sends nothing, and knows the way.
Result<std::string> address_towards(const std::string& host, int port) {
  const addrinfo hints{.ai_family = AF_UNSPEC, .ai_socktype = SOCK_DGRAM};
  addrinfo* listed = nullptr;
  const std::string service = std::to_string(port == 0 ? 1 : port);
  const int status = ::getaddrinfo(host.c_str(), service.c_str(), &hints, &listed);
  if (status != 0)
    return Error(ErrorCode::kProcessGroup,
                 "the host '" + host + "' of the store is not known: " + ::gai_strerror(status));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(listed, ::freeaddrinfo);
  int failure = 0;
  for (const addrinfo* address = listed; address != nullptr; address = address->ai_next) {
    const UniqueFd socket(::socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    if (!socket || ::connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0 ||
        ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
      failure = errno;
      continue;
    }
    return numeric(reinterpret_cast<const sockaddr*>(&own), size);
  }
  return Error(ErrorCode::kProcessGroup,
               "no way to the host '" + host + "' of the store: " + errno_text(failure));
}

Result<std::string> own_address(const std::string& store_host, int store_port) {
  const std::string interfaces = value_of("GLOO_SOCKET_IFNAME");
  if (!interfaces.empty()) return address_of_interface(interfaces.substr(0, interfaces.find(',')));
  return address_towards(store_host, store_port);
}

}  // namespace accel::sharding
