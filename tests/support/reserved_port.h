// ReservedPort: a port of this machine that nobody else gets while this object lives.
//
// Bound and silent: no connection of this machine leaves by it, nobody is given it who asks for any port, and a server
// with SO_REUSEADDR (etcd, gRPC, c10d) may listen there.
#pragma once

#include <stdexcept>

#include <netinet/in.h>
#include <sys/socket.h>

#include "runtime/unique_fd.h"

namespace accel::test {

class ReservedPort {
 public:
  // Throws when none is free.
  ReservedPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int on = 1;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    auto* generic = reinterpret_cast<sockaddr*>(&address);
    const bool is_bound =
        ::setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(socket_.get(), generic, size) == 0 &&
        ::getsockname(socket_.get(), generic, &size) == 0;
    if (!is_bound) throw std::runtime_error("no port is free");
    port_ = ntohs(address.sin_port);
  }
  [[nodiscard]] int port() const { return port_; }

 private:
  UniqueFd socket_;
  int port_ = 0;
};

}  // namespace accel::test
