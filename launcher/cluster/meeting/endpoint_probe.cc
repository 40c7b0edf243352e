#include "launcher/cluster/meeting/endpoint_probe.h"

#include <boost/asio/error.hpp>

namespace accel::cluster {

namespace asio = boost::asio;

void EndpointProbe::ask(const supervisor::TcpEndpoint& endpoint) {
  if (is_asking_) is_refused_ = false;
  end_asking();
  is_asking_ = true;
  socket_.async_connect(endpoint,
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
