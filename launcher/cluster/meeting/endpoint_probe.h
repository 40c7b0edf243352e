// EndpointProbe: whether nobody listens at an endpoint, asked by a connection of its own, which ends at once.
//
// gRPC says in words alone why a connection failed; the error of connect() is a number.
//
// Threads:  the one that runs the io_context, which runs no more when this object goes.
// Cost:     one descriptor until there is an answer.
// Source:   tests/unit/launcher/cluster/endpoint_probe_test.cc.
#pragma once

#include <cstdint>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::cluster {

class EndpointProbe {
 public:
  explicit EndpointProbe(boost::asio::io_context& loop) : socket_(loop) {}

  // The answer of before holds until this one comes. One that had not come by now never does: packets are swallowed.
  void ask(const supervisor::TcpEndpoint& endpoint);
  void forget();

  // The host is there, and nobody listens.
  [[nodiscard]] bool is_refused() const { return is_refused_; }

 private:
  void end_asking();

  boost::asio::ip::tcp::socket socket_;
  std::uint64_t number_ = 0;  // of the question
  bool is_asking_ = false;
  bool is_refused_ = false;
};

}  // namespace accel::cluster
