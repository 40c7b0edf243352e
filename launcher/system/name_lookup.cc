#include "launcher/system/name_lookup.h"

#include <memory>
#include <sstream>

#include <netdb.h>
#include <sys/socket.h>

#include "launcher/system/own_environment.h"
#include "launcher/system/program_output.h"
#include "launcher/system/static_program.h"
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

constexpr int kNameUnknown = 2;  // of getent

HostAddresses ask_getent(const std::string& host) {
  if (host.starts_with('-')) return ask_system(host);  // getent would take it for an option
  const auto answer = run_program({"getent", "ahosts", host}, own_environment());
  if (!answer || (answer->exit_code != 0 && answer->exit_code != kNameUnknown))
    return ask_system(host);
  auto addresses = addresses_of_getent(answer->out);
  if (addresses.empty()) return Error(ErrorCode::kInvalidArgument, ::gai_strerror(EAI_NONAME));
  return addresses;
}

}  // namespace

std::vector<boost::asio::ip::address> addresses_of_getent(std::string_view output) {
  std::vector<boost::asio::ip::address> addresses;
  std::istringstream lines{std::string(output)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string text;
    std::string kind;
    words >> text >> kind;
    boost::system::error_code failure;
    const auto address = boost::asio::ip::make_address(text, failure);
    if (!failure && kind == "STREAM") addresses.push_back(address);
  }
  return addresses;
}

Resolver system_resolver() {
  return is_static_program() ? ask_getent : ask_system;
}

}  // namespace accel::launcher
