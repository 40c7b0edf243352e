#include "launcher/cluster/meeting/endpoint.h"

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>

#include <fcntl.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/supervisor/kernel/detached_call.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {
namespace {

using boost::asio::ip::address;
using std::chrono::milliseconds;

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};

std::optional<HostPort> host_and_port(std::string_view text) {
  const auto [host, port_text] = split_endpoint(text);
  const auto port = number_of<std::uint16_t>(port_text.value_or(""));
  const bool is_name = !host.empty() && std::ranges::all_of(host, [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == '_';
  });
  return port && is_name ? std::optional(HostPort{std::string(host), *port}) : std::nullopt;
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
  supervisor::call_detached<std::vector<address>>([host, resolver] { return resolver(host); },
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

// Means something on one machine alone.
bool has_zone(const address& of) {
  return of.is_v6() && of.to_v6().scope_id() != 0;
}

bool takes_connection(const TcpEndpoint& endpoint, milliseconds limit) {
  const UniqueFd probe(
      ::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) return false;
  if (::connect(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0)
    return true;
  if (errno != EINPROGRESS) return false;
  pollfd waiting{probe.get(), POLLOUT, 0};
  if (::poll(&waiting, 1, static_cast<int>(limit.count())) != 1) return false;
  int failure = 0;
  socklen_t size = sizeof failure;
  return ::getsockopt(probe.get(), SOL_SOCKET, SO_ERROR, &failure, &size) == 0 && failure == 0;
}

}  // namespace

Result<std::vector<TcpEndpoint>> resolve_endpoint(const std::string& text,
                                                  milliseconds limit,
                                                  const launcher::Resolver& resolver) {
  if (const auto numeric = supervisor::parse_tcp_endpoint(text)) return std::vector{*numeric};
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
  std::vector<TcpEndpoint> addresses;
  for (const address& host : *found ? **found : std::vector<address>()) {
    if (!has_zone(host)) addresses.emplace_back(host, parts->port);
  }
  if (addresses.empty()) {
    const std::string why = *found ? "" : ": " + found->error().message();
    return Error(ErrorCode::kRendezvousTimeout,
                 "the name '" + parts->host + "' has no address" + why,
                 remedy);
  }
  // An entry for loopback is of use on that one machine alone.
  std::stable_partition(addresses.begin(), addresses.end(), [](const TcpEndpoint& endpoint) {
    return !endpoint.address().is_loopback();
  });
  return addresses;
}

bool is_by_name(std::string_view text) {
  return !supervisor::parse_tcp_endpoint(text) && !text.starts_with("localhost:");
}

bool is_ours_and_free(const TcpEndpoint& endpoint) {
  const UniqueFd probe(::socket(endpoint.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  // bind() fails beside one that listens. Without listen() of our own: who really takes the port meanwhile would fail by it.
  if (::bind(probe.get(), endpoint.data(), static_cast<socklen_t>(endpoint.size())) == 0)
    return true;
  // A port that needs a right: bind() looks at the address first, which is ours, and not at who has the port.
  constexpr milliseconds kHere(250);
  return errno == EACCES && !takes_connection(endpoint, kHere);
}

std::optional<TcpEndpoint> first_reachable(std::span<const TcpEndpoint> endpoints,
                                           milliseconds limit,
                                           const std::stop_token& stop) {
  for (const TcpEndpoint& endpoint : endpoints) {
    if (stop.stop_requested()) return std::nullopt;
    if (takes_connection(endpoint, limit)) return endpoint;
  }
  return std::nullopt;
}

std::string own_address_towards(const TcpEndpoint& endpoint, bool is_local) {
  const auto source = supervisor::source_towards(endpoint);
  if (!source) return endpoint.address().to_string();
  return is_local || !source->is_loopback() ? source->to_string() : own_addresses().front();
}

std::vector<std::string> own_addresses() {
  std::vector<std::string> found;
  std::vector<std::string> loopbacks;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) == 0) {
    for (const ifaddrs* entry = all; entry != nullptr; entry = entry->ifa_next) {
      const bool is_up = (entry->ifa_flags & IFF_UP) != 0;
      if (entry->ifa_addr == nullptr || !is_up) continue;
      const auto endpoint = supervisor::endpoint_of(entry->ifa_addr);
      // Link-local ones need a zone that means nothing elsewhere.
      if (!endpoint || has_zone(endpoint->address())) continue;
      const address own = endpoint->address();
      (own.is_loopback() ? loopbacks : found).push_back(own.to_string());
    }
    ::freeifaddrs(all);
  }
  // Addresses for documentation: routed as any, and nothing is sent.
  for (const char* far : {"2001:db8::1", "192.0.2.1"}) {
    const auto source = supervisor::source_towards({boost::asio::ip::make_address(far), 9});
    const auto at = std::find(found.begin(), found.end(), source ? source->to_string() : "");
    if (at != found.end()) std::rotate(found.begin(), at, at + 1);
  }
  if (found.empty()) found = std::move(loopbacks);
  if (found.empty()) found.emplace_back("127.0.0.1");
  return found;
}

std::vector<std::string> own_endpoints(int port) {
  std::vector<std::string> endpoints;
  for (const std::string& host : own_addresses()) endpoints.push_back(endpoint_text(host, port));
  return endpoints;
}

}  // namespace accel::cluster
