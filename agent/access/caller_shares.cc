#include "agent/access/caller_shares.h"

#include <cstring>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <unistd.h>

namespace accel::agent {

std::string caller_of(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, text, sizeof text);
    return text;
  }
  in6_addr prefix = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  if (IN6_IS_ADDR_V4MAPPED(&prefix)) {
    ::inet_ntop(AF_INET, &prefix.s6_addr[12], text, sizeof text);
    return text;
  }
  std::memset(&prefix.s6_addr[8], 0, 8);
  ::inet_ntop(AF_INET6, &prefix, text, sizeof text);
  return std::string(text) + "/64";
}

std::string caller_of(uid_t user) {
  return "uid " + std::to_string(user);
}

std::vector<std::string> favoured_users() {
  return {caller_of(uid_t{0}), caller_of(::geteuid())};
}

}  // namespace accel::agent
