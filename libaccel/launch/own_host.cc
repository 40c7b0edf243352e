#include "libaccel/launch/own_host.h"

#include <memory>

#include <netdb.h>
#include <sys/socket.h>

#include "runtime/unique_fd.h"

namespace accel::launch {

bool is_own_host(const std::string& host) {
  const addrinfo wanted = {.ai_socktype = SOCK_STREAM};
  addrinfo* first = nullptr;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &first) != 0) return false;
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(first, ::freeaddrinfo);
  for (const addrinfo* address = first; address != nullptr; address = address->ai_next) {
    const UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (socket && ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0) return true;
  }
  return false;
}

}  // namespace accel::launch
