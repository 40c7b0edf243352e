#include "libaccel/launch/own_host.h"

#include <climits>
#include <memory>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/unique_fd.h"

namespace accel::launch {

namespace {

bool is_own_name(const std::string& host) {
  char name[HOST_NAME_MAX + 1] = {};
  return ::gethostname(name, HOST_NAME_MAX) == 0 && host == name;
}

// 0.0.0.0 and ::, where everybody may listen, and who connects reaches itself.
bool is_wildcard(const sockaddr& address) {
  if (address.sa_family == AF_INET)
    return reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == INADDR_ANY;
  return address.sa_family == AF_INET6 &&
         IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
}

}  // namespace

bool is_own_host(const std::string& host) {
  if (is_own_name(host)) return true;
  const addrinfo wanted = {.ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  const int failure = ::getaddrinfo(host.c_str(), nullptr, &wanted, &first);
  if (failure != 0) return failure == EAI_AGAIN;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(first, ::freeaddrinfo);
  for (const addrinfo* address = first; address != nullptr; address = address->ai_next) {
    if (is_wildcard(*address->ai_addr)) continue;
    const UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace accel::launch
