#include "launcher/cluster/meeting/endpoint_probe.h"

#include <boost/asio/error.hpp>
#include <boost/asio/ip/address.hpp>

namespace accel::cluster {

namespace asio = boost::asio;

void EndpointProbe::ask(const agent::TcpAddress& endpoint) {
  if (is_asking_) is_refused_ = false;
  end_asking();
  boost::system::error_code is_name;
  const auto host = asio::ip::make_address(endpoint.host, is_name);
  if (is_name) return;
  is_asking_ = true;
  socket_.async_connect({host, endpoint.port},
                        [this, number = number_](const boost::system::error_code& failure) {
                          if (number != number_) return;
                          is_refused_ = failure == asio::error::connection_refused;
                          end_asking();
                        });
}

void EndpointProbe::forget() {
  is_refused_ = false;
  end_asking();
}

void EndpointProbe::end_asking() {
  ++number_;  // an answer may be on its way already
  is_asking_ = false;
  boost::system::error_code ignored;
  socket_.close(ignored);
}

}  // namespace accel::cluster
