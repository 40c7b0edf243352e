#include "agent/tls_credentials.h"

#include <cerrno>
#include <functional>
#include <utility>

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/access_policy.h"
#include "agent/certificate_file.h"

namespace accel::agent {
namespace {

namespace tls = grpc::experimental;

constexpr unsigned kReloadSeconds = 10;

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

// A server is believed when the authority signed it and its certificate has the role node in the cluster of ours: an
// authority may serve several. Which host it is on does not matter: nodes have names of their own, and addresses change.
class NodeVerifier final : public tls::ExternalCertificateVerifier {
 public:
  explicit NodeVerifier(std::string cluster) : cluster_(std::move(cluster)) {}

  bool Verify(tls::TlsCustomVerificationCheckRequest* request,
              std::function<void(grpc::Status)>,
              grpc::Status* status) override {
    *status = {grpc::StatusCode::UNAUTHENTICATED,
               "the server's certificate has not the role node in cluster '" + cluster_ + "'"};
    for (const auto& uri : request->uri_names()) {
      const auto name = parse_certificate_name({uri.data(), uri.size()}, cluster_);
      if (name && name->role == Role::kNode) *status = grpc::Status::OK;
    }
    return true;  // decided here and now
  }
  void Cancel(tls::TlsCustomVerificationCheckRequest*) override {}

 private:
  const std::string cluster_;
};

std::shared_ptr<tls::FileWatcherCertificateProvider> watch(const TlsFiles& files) {
  return std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key, files.certificate, files.authority, kReloadSeconds);
}

}  // namespace

Result<std::shared_ptr<grpc::ServerCredentials>> server_credentials(const AgentConfig& config) {
  if (config.insecure) return grpc::InsecureServerCredentials();
  if (auto checked = check_files(config.tls); !checked) return std::move(checked).error();
  tls::TlsServerCredentialsOptions options(watch(config.tls));
  options.watch_root_certs();
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  return tls::TlsServerCredentials(options);
}

Result<std::shared_ptr<grpc::ChannelCredentials>> client_credentials(const TlsFiles& files,
                                                                     bool insecure) {
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
  options.set_certificate_verifier(
      tls::ExternalCertificateVerifier::Create<NodeVerifier>(*std::move(cluster)));
  return tls::TlsCredentials(options);
}

}  // namespace accel::agent
