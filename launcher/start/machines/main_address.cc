#include "launcher/start/machines/main_address.h"

#include <boost/asio/ip/address.hpp>

namespace accel::launcher {
namespace {

namespace ip = boost::asio::ip;

bool is_loopback_name(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

std::string listening_address(const std::string& name,
                              const supervisor::TcpEndpoint& found,
                              bool is_translated) {
  const ip::address address = found.address();
  const bool is_hidden = address.is_loopback() && !is_loopback_name(name);
  if (!is_hidden && !is_translated) return address.to_string();
  return address.is_v6() ? "::" : "0.0.0.0";
}

supervisor::TcpEndpoint own_way_to(const std::string& address, std::uint16_t port) {
  const ip::address bound = ip::make_address(address);
  if (!bound.is_unspecified()) return {bound, port};
  if (bound.is_v6()) return {ip::address_v6::loopback(), port};
  return {ip::address_v4::loopback(), port};
}

}  // namespace accel::launcher
