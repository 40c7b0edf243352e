#include "runtime/supervisor/store/store_gate.h"

#include <sys/socket.h>

#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::supervisor {
namespace {

namespace ip = boost::asio::ip;

// A socket of IPv6 shows the addresses of IPv4 as ::ffff:a.b.c.d.
ip::address plain_address(const ip::address& address) {
  if (!address.is_v6() || !address.to_v6().is_v4_mapped()) return address;
  return ip::make_address_v4(ip::v4_mapped, address.to_v6());
}

}  // namespace

Result<StoreGate> StoreGate::make(const std::vector<std::string>& members, uid_t peer_uid) {
  StoreGate gate;
  gate.peer_uid_ = peer_uid;
  for (const std::string& member : members) {
    if (member == kEveryMachine) {
      gate.admits_every_machine_ = true;
      continue;
    }
    boost::system::error_code not_numeric;
    const auto address = ip::make_address(member, not_numeric);
    if (not_numeric) {
      return Error(ErrorCode::kInvalidArgument,
                   "the store cannot admit '" + member + "': not a numeric address",
                   "give the IPv4 or IPv6 addresses of the members");
    }
    gate.members_.insert(plain_address(address));
  }
  return gate;
}

Result<bool> StoreGate::admits(const UniqueFd& socket, const TcpEndpoint& peer) {
  TcpEndpoint here;
  auto size = static_cast<socklen_t>(here.capacity());
  if (::getsockname(socket.get(), here.data(), &size) != 0) return false;
  here.resize(size);
  const auto address = plain_address(peer.address());
  const auto owner = owners_.owner_of(peer, here);
  if (owner || address.is_loopback() || address == plain_address(here.address()))
    return owner == peer_uid_;
  if (admits_every_machine_ || members_.contains(address)) return true;
  return Error(
      ErrorCode::kStoreLimit,
      "the store refused " + peer.address().to_string() + ", which is no member of this generation",
      "find out what connects from there to port " + std::to_string(here.port()));
}

}  // namespace accel::supervisor
