#include "agent/tls/tls_credentials.h"

#include <cerrno>
#include <functional>
#include <string_view>
#include <utility>

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access/access_policy.h"
#include "agent/tls/certificate_file.h"
#include "agent/tls/revocation_list.h"

namespace accel::agent {
namespace {

namespace tls = grpc::experimental;

Result<void> check_files(const TlsFiles& files) {
  for (const std::string* path : {&files.authority, &files.certificate, &files.key}) {
    if (::access(path->c_str(), R_OK) != 0) {
      return Error(ErrorCode::kTls, *path + " cannot be read: " + errno_text(errno));
    }
  }
  struct stat info {};
  if (::stat(files.key.c_str(), &info) != 0 || (info.st_mode & 0077) != 0) {
    return Error(
        ErrorCode::kTls, files.key + " may be read by other users", "chmod 600 " + files.key);
  }
  return {};
}

std::string_view view(grpc::string_ref text) {
  return {text.data(), text.size()};
}

// A peer whose certificate was taken back does not get past the handshake.
class RevocationVerifier final : public tls::ExternalCertificateVerifier {
 public:
  RevocationVerifier(std::shared_ptr<RevocationList> revoked, OnRefused on_refused)
      : revoked_(std::move(revoked)), on_refused_(std::move(on_refused)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    if (!revoked_->contains(std::string(view(request->peer_cert())))) {
      *status = grpc::Status::OK;
      return true;
    }
    const auto names = request->uri_names();
    const std::string name(names.empty() ? view(request->common_name()) : view(names.front()));
    const Error why = revoked_error(name);
    *status = {grpc::StatusCode::UNAUTHENTICATED, why.message()};
    on_refused_("refused a connection: " + why.message());
    return true;
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::shared_ptr<RevocationList> revoked_;
  const OnRefused on_refused_;
};

// A server is believed when the authority signed it and its certificate has a role that its place admits, in the cluster of
// ours: an authority may serve several. Which host it is on does not matter: nodes have names of their own, and addresses change.
class ServerVerifier final : public tls::ExternalCertificateVerifier {
 public:
  ServerVerifier(Place place, std::string cluster, std::shared_ptr<RevocationList> revoked)
      : place_(place), cluster_(std::move(cluster)), revoked_(std::move(revoked)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    *status = {grpc::StatusCode::UNAUTHENTICATED,
               "the server's certificate has not the role " + std::string(roles_at(place_)) +
                   " in cluster '" + cluster_ + "'"};
    for (const auto& uri : request->uri_names()) {
      const auto name = parse_certificate_name(view(uri), cluster_);
      if (!name || !admits(place_, name->role)) continue;
      *status = grpc::Status::OK;
      if (revoked_ && revoked_->contains(std::string(view(request->peer_cert()))))
        *status = {grpc::StatusCode::UNAUTHENTICATED, revoked_error(name->name).message()};
    }
    return true;  // decided here and now
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const Place place_;
  const std::string cluster_;
  const std::shared_ptr<RevocationList> revoked_;  // nullptr: there is none
};

std::shared_ptr<tls::FileWatcherCertificateProvider> watch(const TlsFiles& files) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authority, kLookAtTlsFiles.count());
}

}  // namespace

Result<TlsFiles> tls_files_in(const std::string& folder) {
  TlsFiles files = {folder + "/ca.pem", folder + "/cert.pem", folder + "/key.pem"};
  const std::string list = folder + "/crl.pem";
  if (::access(list.c_str(), F_OK) == 0) files.crl = list;
  if (auto opened = open_revocations(files); !opened) return std::move(opened).error();
  return files;
}

std::string peer_certificate(const grpc::AuthContext& peer) {
  const auto found = peer.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return found.empty() ? "" : std::string(view(found.front()));
}

Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const AgentConfig& config,
                                                                    OnRefused on_refused) {
  if (config.insecure) return grpc::InsecureServerCredentials();
  if (auto checked = check_files(config.tls); !checked) return std::move(checked).error();
  tls::TlsServerCredentialsOptions options(watch(config.tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  if (config.tls.revoked)
    options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<RevocationVerifier>(
        config.tls.revoked, std::move(on_refused)));
  return tls::TlsServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(const TlsFiles& files,
                                                                     bool insecure,
                                                                     Place server) {
  if (insecure) return grpc::InsecureChannelCredentials();
  if (auto checked = check_files(files); !checked) return std::move(checked).error();
  auto cluster = cluster_of_certificate(files.certificate);
  if (!cluster) return std::move(cluster).error();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(watch(files));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_verify_server_certs(true);
  options.set_check_call_host(false);
  options.set_certificate_verifier(tls::ExternalCertificateVerifier::Create<ServerVerifier>(
      server, *std::move(cluster), files.revoked));
  return tls::TlsCredentials(options);
}

}  // namespace accel::agent
