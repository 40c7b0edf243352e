// ConnectionGate: accepts connections for a gRPC server, over TCP or of local users, as many as there may be.
//
//   waiting --a share is free--> handed over --gRPC shuts it down--> given back
//           '-none: reset at once, and told
//
// gRPC 1.51 takes whatever comes: no setting of it bounds connections. So the gate accepts in its place, and hands each
// descriptor over (ExternalConnectionAcceptor). gRPC does not tell when it closes one, but shuts it down before: the gate
// keeps a duplicate in an epoll set that asks for nothing and so hears of EPOLLHUP alone. What gRPC reads and writes wakes
// nobody here.
//
// Its own listeners are worse: one whose accept() finds no descriptor left is never listened at again.
//
// Threads:  open(), start() and the destructor from one thread. A thread of its own (accel-gate) accepts; `on_refused`
//           is called there.
// Cost:     two descriptors a connection.
// Source:   docs/internals/design.md (rejected ways), tests/integration/floods.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include <accel/result.h>

#include "agent/access/caller_shares.h"
#include "agent/config/agent_config.h"
#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

// As many of `wanted` as the limit of open files of this process has room for, beside what else it opens.
[[nodiscard]] ShareLimits within_open_files(ShareLimits wanted);

// How many local users may have in all, and each of them; an eighth is kept for root and the agent's own user.
[[nodiscard]] ShareLimits local_connection_limits();

class ConnectionGate {
 public:
  struct Handlers {
    std::function<void(UniqueFd)> on_connection;
    std::function<void(const std::string& line)> on_refused;  // may come in floods
  };

  // Listens, and accepts nothing yet. Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<ConnectionGate>> open(
      const supervisor::TcpEndpoint& endpoint, ShareLimits limits);
  // Of local users, at a socket that is made at `path`. A caller is a uid. Errors  kFileIo, kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<ConnectionGate>> open(const std::string& path,
                                                                    ShareLimits limits);
  ~ConnectionGate();

  // 0 for a path.
  [[nodiscard]] int port() const { return port_; }

  void start(Handlers handlers);

  // Accepts nothing more. What was handed over stays.
  void close();

 private:
  ConnectionGate(UniqueFd listener, int port, ShareLimits limits);
  static Result<std::unique_ptr<ConnectionGate>> watch(UniqueFd listener, ShareLimits limits);
  void run();
  void accept_waiting();
  void admit(UniqueFd connection, const std::string& caller);
  void listen_again();
  void forget(int watch);

  UniqueFd listener_;
  const int port_;
  CallerShares shares_;
  Handlers handlers_;
  UniqueFd events_;  // epoll
  UniqueFd wake_;    // eventfd: close() was called
  struct Watch {
    UniqueFd duplicate;
    std::string caller;
  };
  std::map<int, Watch> watches_;  // by the duplicate's number
  bool is_paused_ = false;        // no descriptors left
  std::thread thread_;
};

}  // namespace accel::agent
