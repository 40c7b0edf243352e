#include "launcher/system/name_lookup.h"

#include <array>
#include <memory>

#include <netdb.h>
#include <sys/socket.h>

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
  std::vector<std::string> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    std::array<char, NI_MAXHOST> text{};
    if (::getnameinfo(entry->ai_addr,
                      entry->ai_addrlen,
                      text.data(),
                      text.size(),
                      nullptr,
                      0,
                      NI_NUMERICHOST) == 0)
      addresses.emplace_back(text.data());
  }
  return addresses;
}

}  // namespace

Resolver system_resolver() {
  return ask_system;
}

}  // namespace accel::launcher
