// GrpcServer: the agent's gRPC endpoints, with the limits that every listener has.
//
// Threads:  start() and shutdown() from any one thread; shutdown() blocks until the calls in flight have ended.
// Source:   docs/admin/security.md names the limits.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "agent/calls/connection_gate.h"
#include "agent/config/agent_config.h"

namespace accel::agent {

inline constexpr int kMaxMessageBytes = 1024 * 1024;
inline constexpr int kMaxMetadataBytes = 8 * 1024;

// How many TCP connections there may be: what the configuration says, as far as the limit of open files has room.
[[nodiscard]] ShareLimits connection_limits(const AgentConfig& config);

class GrpcServer {
 public:
  // Serves `services` at the unix socket (unless it is empty) and, when the configuration says so, at TCP. `on_refused`
  // is told of connections beyond the limits and of revoked certificates, on another thread, as often as they come.
  // Errors  kFileIo, kTls, kInvalidArgument.
  [[nodiscard]] static Result<std::unique_ptr<GrpcServer>> start(
      const AgentConfig& config,
      const std::string& socket_path,
      const std::vector<grpc::Service*>& services,
      std::function<void(const std::string& line)> on_refused = [](const std::string&) {});

  // The port that was bound; 0 without TCP.
  [[nodiscard]] int tcp_port() const { return tcp_.gate ? tcp_.gate->port() : 0; }

  // grpc.health.v1, by the name of a service or "job/<uuid>".
  void set_health(const std::string& service, bool is_serving);

  // Refuses new calls, gives those in flight two seconds, then cuts them.
  void shutdown();

 private:
  std::unique_ptr<grpc::Server> server_;
  struct Entrance {
    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor;
    std::unique_ptr<ConnectionGate> gate;  // ends before the acceptor

    void begin(grpc::ServerBuilder& builder,
               const std::shared_ptr<grpc::ServerCredentials>& credentials);
    void start(const std::function<void(const std::string& line)>& on_refused);
  };
  Entrance local_;  // without a gate where there is no such socket
  Entrance tcp_;
};

}  // namespace accel::agent
