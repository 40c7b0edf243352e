// AgentClient: the Control service of one agent, for commands that wait for each answer.
//
// Every call on the unix socket carries a fresh ticket, and has a connection of its own: gRPC would not wait for a place in the
// socket's queue (agent/access/local_caller.h). On TCP the certificate says who calls.
//
// Threads:  any; each call has its own context.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "accel/v1/control.grpc.pb.h"
#include "agent/config/agent_config.h"
#include "runtime/unique_fd.h"

namespace accel::cluster {

struct AgentAddress {
  std::string socket_folder;  // agent.sock and tickets.sock; empty: TCP
  std::string tcp;            // "10.0.0.7:29400"
  std::string tls_dir;        // for TCP: the folder of certificates
  bool insecure = false;
};

// `text` is a folder, a path to one of its sockets, or ADDR:PORT; empty: $ACCEL_AGENT, else /run/accel.
[[nodiscard]] AgentAddress parse_agent_address(std::string text,
                                               const std::string& tls_dir,
                                               bool insecure);

// One call: the service, its context, and the connection that keeps its ticket valid.
struct Call {
  std::shared_ptr<v1::Control::Stub> stub;
  std::unique_ptr<grpc::ClientContext> context;
  UniqueFd ticket_connection;
};

class AgentClient {
 public:
  // Errors  kTls, kUsage: no ADDR:PORT. Nothing is connected yet.
  [[nodiscard]] static Result<AgentClient> make(AgentAddress address);

  // With a deadline for unary calls, without one for streams. Errors  kAgentUnreachable, kAgentRefused.
  enum class Kind { kUnary, kStream };
  [[nodiscard]] Result<Call> begin(Kind kind = Kind::kUnary) const;

  // One unary call. Errors  those of begin(), and what the agent answered.
  template <typename Request, typename Response>
  [[nodiscard]] Result<Response> call(
      grpc::Status (v1::Control::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      const Request& request) const {
    auto call = begin();
    if (!call) return std::move(call).error();
    Response response;
    const grpc::Status status = ((*call->stub).*method)(call->context.get(), request, &response);
    if (!status.ok()) return to_error(status);
    return response;
  }

  [[nodiscard]] Error to_error(const grpc::Status& status) const;

 private:
  explicit AgentClient(AgentAddress address) : address_(std::move(address)) {}

  AgentAddress address_;
  std::shared_ptr<v1::Control::Stub> tcp_stub_;
};

}  // namespace accel::cluster
