// CallIdentity: who makes a call, as its connection proves it.
//
// Threads:  pure functions.
#pragma once

#include <optional>
#include <string>

#include <grpcpp/grpcpp.h>

#include <accel/result.h>

#include "agent/access/access_policy.h"
#include "agent/access/ticket_book.h"

namespace accel::agent {

// The name under which a local caller's ticket stands in the metadata of a call.
inline constexpr const char* kTicketMetadata = "accel-ticket";

// What a call says about its caller; taken on gRPC's thread.
struct CallIdentity {
  std::string peer;                     // "unix:", "ipv4:10.0.0.7:40412"
  std::string ticket;                   // of the metadata
  std::optional<std::string> cert_uri;  // of the verified certificate, when there is one
  std::string certificate;              // that one, as PEM
  bool is_tls = false;
};
[[nodiscard]] CallIdentity identify_call(const grpc::ServerContextBase& context);

// Who calls over TCP. Errors  kAuthentication; also for a local caller.
[[nodiscard]] Result<Caller> authenticate_remote(const CallIdentity& call,
                                                 const AgentConfig& config,
                                                 uid_t agent_uid);

// Turns what a call says into who calls. Errors  kAuthentication.
[[nodiscard]] Result<Caller> authenticate(const CallIdentity& call,
                                          const TicketBook& tickets,
                                          const AgentConfig& config,
                                          uid_t agent_uid);

}  // namespace accel::agent
