#include "launcher/system/name_lookup.h"

#include <memory>

#include <netdb.h>
#include <sys/socket.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::launcher {
namespace {

HostAddresses ask_system(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_ADDRCONFIG;
  addrinfo* found = nullptr;
  if (const int failure = ::getaddrinfo(host.c_str(), nullptr, &wanted, &found); failure != 0)
    return Error(ErrorCode::kInvalidArgument, ::gai_strerror(failure));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owned(found, ::freeaddrinfo);
  std::vector<boost::asio::ip::address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    if (const auto endpoint = supervisor::endpoint_of(entry->ai_addr))
      addresses.push_back(endpoint->address());
  }
  return addresses;
}

}  // namespace

Resolver system_resolver() {
  return ask_system;
}

}  // namespace accel::launcher
