#include "launcher/cluster/meeting/endpoint.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/config/node_address.h"
#include "runtime/supervisor/kernel/detached_call.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {
namespace {

using agent::host_of;
using agent::make_socket_address;
using agent::SocketAddress;
using agent::source_towards;
using agent::TcpAddress;
using std::chrono::milliseconds;

Result<TcpAddress> numeric(const std::string& host, std::uint16_t port) {
  return agent::parse_tcp_address(endpoint_text(host, port));
}

bool is_loopback(const std::string& host) {
  const auto address = numeric(host, 0);
  return address && address->is_loopback;
}

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

std::optional<HostPort> host_and_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return std::nullopt;
  const auto port = number_of<std::uint16_t>(text.substr(colon + 1));
  if (!port) return std::nullopt;
  HostPort out{std::string(text.substr(0, colon)), *port};
  const bool is_name = std::all_of(out.host.begin(), out.host.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  return is_name ? std::optional(out) : std::nullopt;
}

// A look-up that may outlive the one who asks.
struct Lookup {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<launcher::HostAddresses> found;
};

// std::nullopt: not within `limit`.
std::optional<launcher::HostAddresses> look_up(const std::string& host,
                                               milliseconds limit,
                                               const launcher::Resolver& resolver) {
  const auto lookup = std::make_shared<Lookup>();
  supervisor::call_detached<std::vector<std::string>>([host, resolver] { return resolver(host); },
                                                      launcher::kNoLookup,
                                                      [lookup](launcher::HostAddresses found) {
                                                        const std::lock_guard lock(lookup->mutex);
                                                        lookup->found = std::move(found);
                                                        lookup->changed.notify_all();
                                                      });
  std::unique_lock lock(lookup->mutex);
  lookup->changed.wait_for(lock, limit, [&] { return lookup->found.has_value(); });
  return lookup->found;
}

bool takes_connection(const TcpAddress& address, milliseconds limit) {
  const SocketAddress to = make_socket_address(address);
  const UniqueFd probe(
      ::socket(to.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return false;
  if (::connect(probe.get(), to.get(), to.size) == 0) return true;
  if (errno != EINPROGRESS) return false;
  pollfd waiting{probe.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, static_cast<int>(limit.count())) != 1) return false;
  int failure = 0;
  socklen_t size = sizeof failure;
  return ::getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0;
}

}  // namespace

Result<std::vector<TcpAddress>> resolve_endpoint(const std::string& text,
                                                 milliseconds limit,
                                                 const launcher::Resolver& resolver) {
  if (auto address = agent::parse_tcp_address(text)) return std::vector{*std::move(address)};
  const auto parts = host_and_port(text);
  if (!parts) {
    return Error(ErrorCode::kInvalidArgument,
                 "'" + text + "' is not of the form HOST:PORT",
                 "give it as 10.0.0.7:29400, [fd00::7]:29400 or gpu-01:29400");
  }
  const auto found = look_up(parts->host, limit, resolver);
  const char* remedy = "give the numeric address instead, or mend the name service";
  if (!found) {
    return Error(ErrorCode::kRendezvousTimeout,
                 "the name '" + parts->host + "' was not resolved within " +
                     std::to_string(limit.count()) + " ms",
                 remedy);
  }
  std::vector<TcpAddress> addresses;
  const auto hosts = *found ? **found : std::vector<std::string>();
  for (const std::string& host : hosts) {
    if (auto address = numeric(host, parts->port)) addresses.push_back(*std::move(address));
  }
  if (addresses.empty()) {
    const std::string why = *found ? "" : ": " + found->error().message();
    return Error(ErrorCode::kRendezvousTimeout,
                 "the name '" + parts->host + "' has no address" + why,
                 remedy);
  }
  // An entry for loopback is of use on that one machine alone.
  std::stable_partition(addresses.begin(), addresses.end(), [](const TcpAddress& address) {
    return !address.is_loopback;
  });
  return addresses;
}

bool is_by_name(std::string_view text) {
  return !agent::parse_tcp_address(text) && !text.starts_with("localhost:");
}

std::string to_text(const TcpAddress& address) {
  return endpoint_text(address.host, address.port);
}

bool is_ours_and_free(const TcpAddress& address) {
  const SocketAddress wanted = make_socket_address(address);
  const UniqueFd probe(::socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // bind() fails beside one that listens. Without listen() of our own: who really takes the port meanwhile would fail by it.
  if (::bind(probe.get(), wanted.get(), wanted.size) == 0) return true;
  // A port that needs a right: bind() looks at the address first, which is ours, and not at who has the port.
  constexpr milliseconds kHere(250);
  return errno == EACCES && !takes_connection(address, kHere);
}

std::optional<TcpAddress> first_reachable(std::span<const TcpAddress> addresses,
                                          milliseconds limit,
                                          const std::stop_token& stop) {
  for (const TcpAddress& address : addresses) {
    if (stop.stop_requested()) return std::nullopt;
    if (takes_connection(address, limit)) return address;
  }
  return std::nullopt;
}

std::string own_address_towards(const TcpAddress& endpoint, bool is_local) {
  const std::string source = source_towards(endpoint);
  if (source.empty()) return endpoint.host;
  if (is_local || !is_loopback(source)) return source;
  return own_addresses().front();
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  std::vector<std::string> loopbacks;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
      const sockaddr* address = entry->ifa_addr;
      const bool is_up = (entry->ifa_flags & IFF_UP) != 0;
      if (address == nullptr || !is_up) continue;
      if (address->sa_family != AF_INET && address->sa_family != AF_INET6) continue;
      // Link-local ones need a zone that means nothing elsewhere.
      if (address->sa_family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr)) {
        continue;
      }
      std::string host = host_of(address);
      (is_loopback(host) ? loopbacks : found).push_back(std::move(host));
    }
    ::freeifaddrs(all);
  }
  // Addresses for documentation: routed as any, and nothing is sent.
  for (const char* far : {"2001:db8::1", "192.0.2.1"}) {
    const std::string source = source_towards({.host = far, .port = 9, .is_loopback = false});
    const auto at = std::find(found.begin(), found.end(), source);
    if (at != found.end()) std::rotate(found.begin(), at, at + 1);
  }
  if (found.empty()) found = std::move(loopbacks);
  if (found.empty()) found.emplace_back("127.0.0.1");
  return found;
}

}  // namespace accel::cluster
