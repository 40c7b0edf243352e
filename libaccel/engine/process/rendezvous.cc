// A store of c10d on a port of the kernel's choice. The socket is bound here, for c10d's own listens on every address of the
// machine, whatever host it is given.

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <random>

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <unistd.h>

#include <accel/error.h>
#include <accel/rendezvous.h>

#include "libaccel/engine/process/process_group.h"
#include "runtime/printable.h"
#include "runtime/text/first_line.h"
#include "runtime/text/number_text.h"
#include "runtime/unique_fd.h"

namespace accel {
namespace {

constexpr int kBacklog = 2048;
constexpr std::size_t kLongestHost = 255;

std::uint16_t port_of(int socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&bound), &size);
  if (bound.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&bound)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&bound)->sin_port);
}

// One address alone, or with an empty host all of IPv6 and IPv4.
UniqueFd listen_on(const std::string& host) {
  const addrinfo hints{.ai_flags = AI_PASSIVE, .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  addrinfo* listed = nullptr;
  const int status = ::getaddrinfo(host.empty() ? nullptr : host.c_str(), "0", &hints, &listed);
  if (status != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "the host '" + printable(host) +
                    "' of a rendezvous is not known: " + ::gai_strerror(status),
                "name this machine, or an address of it");
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> all(listed, ::freeaddrinfo);
  int failure = EADDRNOTAVAIL;
  // With an empty host IPv6 goes first: such a socket takes connections of both kinds.
  for (const bool wants_v6 : {true, false}) {
    for (const addrinfo* address = listed; address != nullptr; address = address->ai_next) {
      if ((address->ai_family == AF_INET6) != wants_v6) continue;
      UniqueFd socket(::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      const int only_v6 = 0;
      if (socket && address->ai_family == AF_INET6)
        ::setsockopt(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only_v6, sizeof only_v6);
      if (socket && ::bind(socket.get(), address->ai_addr, address->ai_addrlen) == 0 &&
          ::listen(socket.get(), kBacklog) == 0)
        return socket;
      failure = errno;
    }
  }
  const bool is_elsewhere = failure == EADDRNOTAVAIL;
  throw Error(is_elsewhere ? ErrorCode::kInvalidArgument : ErrorCode::kProcessGroup,
              "cannot open a rendezvous at " +
                  (host.empty() ? std::string("any address") : printable(host)) + ": " +
                  errno_text(failure),
              is_elsewhere ? "name this machine, or an address of it" : "");
}

std::string own_name() {
  std::array<char, kLongestHost + 1> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "localhost";
  return name.data();
}

std::string fresh_token() {
  std::random_device source;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", source(), source());
  return text.data();
}

Error invalid_address(const std::string& address) {
  return Error(
      ErrorCode::kInvalidArgument,
      "the address of the rendezvous is '" + printable(address) + "', expected HOST:PORT/TOKEN",
      "pass on the whole text that the rank which opened the rendezvous got");
}

void check_rank_number(const char* name, int value, int least, int limit, const char* limit_name) {
  if (value >= least && value < limit) return;
  throw Error(ErrorCode::kInvalidArgument,
              std::string(name) + " is " + std::to_string(value) + ", expected from " +
                  std::to_string(least) + " to " + std::to_string(limit - 1) + " (" + limit_name +
                  ")");
}

void check_placement(const RankPlacement& placement) {
  if (placement.world_size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                "world_size is " + std::to_string(placement.world_size) + ", expected at least 1");
  }
  check_rank_number("rank", placement.rank, 0, placement.world_size, "below world_size");
  check_rank_number("local_world_size",
                    placement.local_world_size,
                    1,
                    placement.world_size + 1,
                    "at most world_size");
  check_rank_number(
      "local_rank", placement.local_rank, 0, placement.local_world_size, "below local_world_size");
}

}  // namespace

struct Rendezvous::Impl {
  c10::intrusive_ptr<c10d::TCPStore> store;
};

Rendezvous::Rendezvous(const std::string& host) : impl_(std::make_unique<Impl>()) {
  UniqueFd socket = listen_on(host);
  const std::uint16_t port = port_of(socket.get());
  c10d::TCPStoreOptions options;
  options.port = port;
  options.isServer = true;
  options.waitWorkers = false;
  options.masterListenFd = socket.get();
  try {
    impl_->store = c10::make_intrusive<c10d::TCPStore>(host.empty() ? "localhost" : host, options);
    (void)socket.release();  // the store's now
  } catch (const std::exception& cause) {
    throw Error(ErrorCode::kProcessGroup, "cannot open a rendezvous: " + first_line(cause.what()));
  }
  address_ = (host.empty() ? own_name() : host) + ":" + std::to_string(port) + "/" + fresh_token();
}

Rendezvous::~Rendezvous() = default;

WorkerIdentity identity_at(const std::string& address, const RankPlacement& placement) {
  check_placement(placement);
  if (placement.world_size == 1 && address.empty()) return {};
  const std::size_t slash = address.rfind('/');
  const std::size_t colon = address.rfind(':', slash);
  if (slash == std::string::npos || colon == std::string::npos || colon == 0 ||
      colon > kLongestHost || slash + 1 == address.size())
    throw invalid_address(address);
  const auto port = signed_number<int>(address.substr(colon + 1, slash - colon - 1));
  if (!port || *port < 1 || *port > 65535) throw invalid_address(address);
  WorkerIdentity identity;
  identity.global_rank = placement.rank;
  identity.world_size = placement.world_size;
  identity.local_rank = placement.local_rank;
  identity.local_world_size = placement.local_world_size;
  identity.master_addr = address.substr(0, colon);
  identity.master_port = static_cast<std::uint16_t>(*port);
  identity.run_id = address.substr(slash + 1);
  identity.use_agent_store = true;  // the Rendezvous outlives the group: rank 0 is a client, too
  return identity;
}

}  // namespace accel
