#include "agent/etcd/etcd_client.h"

#include <fstream>
#include <sstream>
#include <utility>

#include <sys/stat.h>

#include "runtime/printable.h"

namespace accel::agent {
namespace {

// A member that is gone without a word is noticed after so long; etcd refuses pings that come more often than every 5 s.
constexpr int kPingEveryMs = 10'000;
constexpr int kPingLimitMs = 3'000;

Result<std::string> read_tls_file(const std::string& path, bool is_key) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (file) text << file.rdbuf();
  if (!file || file.bad())
    return Error(ErrorCode::kTls, path + " cannot be read: " + errno_text(errno));
  struct stat info {};
  if (is_key && (::stat(path.c_str(), &info) != 0 || (info.st_mode & 0077) != 0)) {
    return Error(ErrorCode::kTls, path + " may be read by other users", "chmod 600 " + path);
  }
  return text.str();
}

Result<std::shared_ptr<grpc::ChannelCredentials>> etcd_credentials(const TlsFiles& files) {
  if (files.authority.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  auto authority = read_tls_file(files.authority, false);
  if (!authority) return std::move(authority).error();
  options.pem_root_certs = *std::move(authority);
  if (!files.certificate.empty()) {
    auto certificate = read_tls_file(files.certificate, false);
    if (!certificate) return std::move(certificate).error();
    auto key = read_tls_file(files.key, true);
    if (!key) return std::move(key).error();
    options.pem_cert_chain = *std::move(certificate);
    options.pem_private_key = *std::move(key);
  }
  return grpc::SslCredentials(options);
}

bool may_another_answer(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

Error refusal_of(const grpc::Status& status, const std::string& endpoint) {
  const std::string text = "etcd at " + endpoint + " refused: " + printable(status.error_message());
  switch (status.error_code()) {
    case grpc::StatusCode::RESOURCE_EXHAUSTED:
      return Error(
          ErrorCode::kDiskFull,
          text,
          "compact and defragment etcd, then `etcdctl alarm disarm`; see --quota-backend-bytes");
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      return Error(ErrorCode::kAuthentication,
                   text,
                   "see etcd.certificate and etcd.key, and what that user may do in etcd");
    default:
      return Error(ErrorCode::kInvalidArgument, text);
  }
}

}  // namespace

Result<std::shared_ptr<EtcdClient>> EtcdClient::make(const EtcdSettings& settings) {
  auto credentials = etcd_credentials(settings.tls);
  if (!credentials) return std::move(credentials).error();
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kPingEveryMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kPingLimitMs);
  // A page of records may be long: etcd itself bounds each of them to 1.5 MiB.
  arguments.SetMaxReceiveMessageSize(256 * 1024 * 1024);
  std::shared_ptr<EtcdClient> client(new EtcdClient());
  for (const std::string& endpoint : settings.endpoints) {
    Member member;
    member.endpoint = endpoint;
    member.channel = grpc::CreateCustomChannel(endpoint, *credentials, arguments);
    member.keys = etcdserverpb::KV::NewStub(member.channel);
    member.leases = etcdserverpb::Lease::NewStub(member.channel);
    client->members_.push_back(std::move(member));
  }
  return client;
}

Result<void> EtcdClient::call(
    const std::function<grpc::Status(Member&, grpc::ClientContext&)>& ask) {
  const std::size_t first = first_.load();
  std::string tried;
  Error unreachable(ErrorCode::kEtcdUnreachable, "");
  std::vector<std::pair<std::string, std::string>> said;
  for (std::size_t i = 0; i < members_.size(); ++i) {
    const std::size_t index = (first + i) % members_.size();
    Member& member = members_[index];
    grpc::ClientContext context;
    // Right after a start a channel has never been connected: it may use the second for that.
    context.set_wait_for_ready(true);
    context.set_deadline(std::chrono::system_clock::now() + kEtcdCallLimit);
    const grpc::Status status = ask(member, context);
    if (status.ok()) {
      first_.store(index);
      return {};
    }
    if (!may_another_answer(status)) return refusal_of(status, member.endpoint);
    tried += (tried.empty() ? "" : ", ") + member.endpoint;
    const bool is_late = status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    said.emplace_back(member.endpoint,
                      is_late ? "no answer within " + std::to_string(kEtcdCallLimit.count()) + " s"
                              : printable(status.error_message()));
  }
  Error error(ErrorCode::kEtcdUnreachable, "etcd does not answer at " + tried);
  for (auto& [endpoint, text] : said) error.with_detail("etcd", endpoint + ": " + text);
  return error;
}

Result<etcdserverpb::RangeResponse> EtcdClient::range(const etcdserverpb::RangeRequest& request) {
  etcdserverpb::RangeResponse response;
  auto done = call([&](Member& member, grpc::ClientContext& context) {
    return member.keys->Range(&context, request, &response);
  });
  if (!done) return std::move(done).error();
  return response;
}

Result<etcdserverpb::TxnResponse> EtcdClient::txn(const etcdserverpb::TxnRequest& request) {
  etcdserverpb::TxnResponse response;
  auto done = call([&](Member& member, grpc::ClientContext& context) {
    return member.keys->Txn(&context, request, &response);
  });
  if (!done) return std::move(done).error();
  return response;
}

Result<EtcdClient::Lease> EtcdClient::grant(std::chrono::seconds ttl) {
  etcdserverpb::LeaseGrantRequest request;
  request.set_ttl(ttl.count());
  etcdserverpb::LeaseGrantResponse response;
  auto done = call([&](Member& member, grpc::ClientContext& context) {
    return member.leases->LeaseGrant(&context, request, &response);
  });
  if (!done) return std::move(done).error();
  return Lease{response.id(), std::chrono::seconds(response.ttl())};
}

Result<EtcdClient::Lease> EtcdClient::keep_alive(std::int64_t lease) {
  etcdserverpb::LeaseKeepAliveRequest request;
  request.set_id(lease);
  etcdserverpb::LeaseKeepAliveResponse response;
  auto done = call([&](Member& member, grpc::ClientContext& context) {
    auto stream = member.leases->LeaseKeepAlive(&context);
    const bool is_answered = stream->Write(request) && stream->Read(&response);
    stream->WritesDone();
    if (is_answered) context.TryCancel();  // etcd would keep the stream for more of them
    const grpc::Status status = stream->Finish();
    return is_answered ? grpc::Status::OK : status;
  });
  if (!done) return std::move(done).error();
  return Lease{response.id(), std::chrono::seconds(response.ttl())};
}

Result<void> EtcdClient::revoke(std::int64_t lease) {
  etcdserverpb::LeaseRevokeRequest request;
  request.set_id(lease);
  return call([&](Member& member, grpc::ClientContext& context) {
    etcdserverpb::LeaseRevokeResponse response;
    const grpc::Status status = member.leases->LeaseRevoke(&context, request, &response);
    return status.error_code() == grpc::StatusCode::NOT_FOUND ? grpc::Status::OK : status;
  });
}

std::shared_ptr<grpc::Channel> EtcdClient::channel() const {
  return members_[first_.load()].channel;
}

// ---- watches ----

EtcdWatch::EtcdWatch(const EtcdClient& client,
                     const std::string& key,
                     std::int64_t from_revision,
                     Handlers handlers)
    : stub_(etcdserverpb::Watch::NewStub(client.channel())),
      handlers_(std::move(handlers)),
      thread_([this, key, from_revision] { run(key, from_revision); }) {}

EtcdWatch::~EtcdWatch() {
  context_.TryCancel();
  thread_.join();
}

void EtcdWatch::run(const std::string& key, std::int64_t from_revision) {
  auto stream = stub_->Watch(&context_);
  etcdserverpb::WatchRequest request;
  request.mutable_create_request()->set_key(key);
  request.mutable_create_request()->set_start_revision(from_revision);
  bool is_open = stream->Write(request);
  etcdserverpb::WatchResponse response;
  while (is_open && stream->Read(&response)) {
    for (const mvccpb::Event& event : response.events()) handlers_.on_event(event);
    is_open = !response.canceled();
  }
  context_.TryCancel();
  stream->Finish();
  handlers_.on_broken();
}

std::string prefix_end(std::string prefix) {
  while (!prefix.empty()) {
    auto& last = reinterpret_cast<unsigned char&>(prefix.back());
    if (last < 0xff) {
      ++last;
      return prefix;
    }
    prefix.pop_back();
  }
  return std::string(1, '\0');  // to the end of all keys
}

}  // namespace accel::agent
