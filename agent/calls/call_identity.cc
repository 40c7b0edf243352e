#include "agent/calls/call_identity.h"

#include <string_view>

#include "agent/calls/server_call.h"
#include "agent/tls/revocation_list.h"
#include "agent/tls/tls_credentials.h"

namespace accel::agent {

CallIdentity identify_call(const grpc::ServerContextBase& context) {
  CallIdentity call;
  call.peer = context.peer();
  call.ticket = metadata_of(context, kTicketMetadata);
  const auto auth = context.auth_context();
  if (auth == nullptr) return call;
  for (const auto& type : auth->FindPropertyValues("transport_security_type")) {
    const std::string_view name(type.data(), type.size());
    call.is_tls = name == "tls" || name == "ssl";
  }
  for (const auto& uri : auth->FindPropertyValues("peer_uri")) {
    if (!call.cert_uri) call.cert_uri = std::string(uri.data(), uri.size());
  }
  call.certificate = peer_certificate(*auth);
  return call;
}

Result<Caller> authenticate(const CallIdentity& call,
                            const TicketBook& tickets,
                            const AgentConfig& config,
                            uid_t agent_uid) {
  if (call.peer.starts_with("unix:")) {
    const auto user = tickets.find(call.ticket);
    if (!user)
      return Error(ErrorCode::kAuthentication, "the call carries no valid ticket of this agent");
    return Caller{
        .role = Role::kLocal, .uid = user->uid, .name = "uid " + std::to_string(user->uid)};
  }
  return authenticate_remote(call, config, agent_uid);
}

Result<Caller> authenticate_remote(const CallIdentity& call,
                                   const AgentConfig& config,
                                   uid_t agent_uid) {
  if (call.peer.starts_with("unix:"))
    return Error(ErrorCode::kAuthentication, "this is for agents, which call over TCP");
  if (call.is_tls) {
    const auto name = parse_certificate_name(call.cert_uri.value_or(""), config.cluster);
    // A connection may be older than the list that names its certificate.
    const auto& revoked = config.tls.revoked;
    if (name && revoked && revoked->contains(call.certificate)) return revoked_error(name->name);
    if (name)
      return Caller{
          .role = name->role, .uid = 0, .name = name->name, .certificate = call.certificate};
    return Error(ErrorCode::kAuthentication,
                 "the certificate of " + call.peer + " has no name of the form accel://" +
                     config.cluster + "/ROLE/NAME");
  }
  // --insecure (an agent's is loopback alone, that of an open job of accel-launch any address): whoever reaches it may look and
  // take part, and runs nothing as somebody else.
  if (config.insecure)
    return Caller{.role = Role::kNode, .uid = agent_uid, .name = "insecure " + call.peer};
  return Error(ErrorCode::kAuthentication, call.peer + " did not prove who it is");
}

}  // namespace accel::agent
