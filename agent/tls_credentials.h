// TlsCredentials: what gRPC needs to speak mutual TLS with the files of the configuration.
//
// The files are looked at again every few seconds: a new certificate serves new connections without a restart, and
// streams that run are kept.
//
// Threads:  plain functions; gRPC keeps threads of its own that read the files.
#pragma once

#include <memory>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <accel/result.h>

#include "agent/agent_config.h"

namespace accel::agent {

// Certificates are demanded and verified; insecure ones when the configuration says so. Errors  kTls.
[[nodiscard]] Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(
    const AgentConfig& config);

// For a node or an operator that calls an agent. The server's certificate must be signed by the authority; its name is
// checked by the caller (the role node, in the cluster of the caller's certificate), not against a host name. Errors  kTls.
[[nodiscard]] Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(
    const TlsFiles& files, bool insecure);

}  // namespace accel::agent
