// TlsCredentials: what gRPC needs to speak mutual TLS with the files of the configuration.
//
// The files are looked at again every few seconds: a new certificate serves new connections without a restart, and
// streams that run are kept.
//
// Threads:  plain functions; gRPC keeps threads of its own that read the files.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include <grpcpp/security/auth_context.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <accel/result.h>

#include "agent/access/access_policy.h"
#include "agent/config/agent_config.h"

namespace accel::agent {

// How often files of certificates, and lists of revoked ones, are looked at.
inline constexpr std::chrono::seconds kLookAtTlsFiles{10};

// The files of a node, launcher, operator or viewer, as `accel-agent init-tls` makes them; with the list of revoked
// certificates crl.pem, where it is there. Errors  those of RevocationList::open().
[[nodiscard]] Result<TlsFiles> tls_files_in(const std::string& folder);

// The certificate (PEM) at the other end of a connection; empty: none was shown.
[[nodiscard]] std::string peer_certificate(const grpc::AuthContext& peer);

// Is told of peers whose certificate was revoked, on another thread, as often as they come.
using OnRefused = std::function<void(const std::string& line)>;

// Certificates are demanded and verified; insecure ones when the configuration says so. Errors  kTls.
[[nodiscard]] Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(
    const AgentConfig& config, OnRefused on_refused);

// For a node or an operator that calls an agent, or a launcher that calls the one that hosts its job. The server's
// certificate must be signed by the authority; its name is checked by the caller (a role that `server` admits, in the cluster
// of the caller's certificate), not against a host name. Errors  kTls.
[[nodiscard]] Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(
    const TlsFiles& files, bool insecure, Place server = Place::kAgent);

}  // namespace accel::agent
