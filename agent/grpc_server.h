// GrpcServer: the agent's gRPC endpoints, with the limits that every listener has.
//
// Threads:  start() and shutdown() from any one thread; shutdown() blocks until the calls in flight have ended.
// Source:   docs/security.md names the limits.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "agent/agent_config.h"

namespace accel::agent {

inline constexpr int kMaxMessageBytes = 1024 * 1024;
inline constexpr int kMaxMetadataBytes = 8 * 1024;

class GrpcServer {
 public:
  // Serves `services` at the unix socket (unless it is empty) and, when the configuration says so, at TCP. Errors  kFileIo, kTls.
  [[nodiscard]] static Result<std::unique_ptr<GrpcServer>> start(
      const AgentConfig& config,
      const std::string& socket_path,
      const std::vector<grpc::Service*>& services);

  // The port that was bound; 0 without TCP.
  [[nodiscard]] int tcp_port() const { return tcp_port_; }

  // grpc.health.v1, by the name of a service or "job/<id>".
  void set_health(const std::string& service, bool is_serving);

  // Refuses new calls, gives those in flight two seconds, then cuts them.
  void shutdown();

 private:
  std::unique_ptr<grpc::Server> server_;
  int tcp_port_ = 0;
};

}  // namespace accel::agent
