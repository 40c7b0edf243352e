#include "agent/calls/grpc_server.h"

#include <chrono>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "agent/tls/tls_credentials.h"

namespace accel::agent {
namespace {

constexpr int kMaxServerThreads = 8;
constexpr std::size_t kMaxMemoryBytes = 64 * 1024 * 1024;

void set_limits(grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 32);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5'000);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300'000);
  builder.AddChannelArgument(GRPC_ARG_ENABLE_CHANNELZ, 0);
  builder.SetResourceQuota(grpc::ResourceQuota("accel-agent")
                               .Resize(kMaxMemoryBytes)
                               .SetMaxThreads(kMaxServerThreads * 4));
}

}  // namespace

ShareLimits connection_limits(const AgentConfig& config) {
  return within_open_files(
      {.most = config.max_connections, .most_each = config.max_connections_each});
}

Result<std::unique_ptr<GrpcServer>> GrpcServer::start(
    const AgentConfig& config,
    const std::string& socket_path,
    const std::vector<grpc::Service*>& services,
    std::function<void(const std::string&)> on_refused) {
  grpc::EnableDefaultHealthCheckService(true);
  // Reflection tells everything about the protocol: to local users, and to those with a certificate.
  const bool is_open_tcp = !config.listen.empty() && config.insecure;
  if (!is_open_tcp) grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  set_limits(builder);
  auto made = std::make_unique<GrpcServer>();
  if (!socket_path.empty()) {
    auto gate = ConnectionGate::open(socket_path, local_connection_limits());
    if (!gate) return std::move(gate).error();
    made->local_.gate = *std::move(gate);
    made->local_.begin(builder, grpc::InsecureServerCredentials());
  }
  if (!config.listen.empty()) {
    auto credentials = server_credentials(config, on_refused);
    if (!credentials) return std::move(credentials).error();
    const auto endpoint = supervisor::parse_tcp_endpoint(config.listen);
    if (!endpoint) return endpoint.error();
    auto gate = ConnectionGate::open(*endpoint, connection_limits(config));
    if (!gate) return std::move(gate).error();
    made->tcp_.gate = *std::move(gate);
    made->tcp_.begin(builder, *credentials);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr)
    return Error(ErrorCode::kInternal, "the gRPC server does not start; its own log says more");
  made->local_.start(on_refused);
  made->tcp_.start(on_refused);
  return made;
}

void GrpcServer::Entrance::begin(grpc::ServerBuilder& builder,
                                 const std::shared_ptr<grpc::ServerCredentials>& credentials) {
  acceptor = builder.experimental().AddExternalConnectionAcceptor(
      grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, credentials);
}

void GrpcServer::Entrance::start(const std::function<void(const std::string&)>& on_refused) {
  if (!gate) return;
  gate->start({.on_connection =
                   [to = acceptor.get()](UniqueFd connection) {
                     grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters given;
                     given.fd = connection.release();
                     to->HandleNewConnection(&given);
                   },
               .on_refused = on_refused});
}

void GrpcServer::set_health(const std::string& service, bool is_serving) {
  auto* health = server_->GetHealthCheckService();
  if (health != nullptr) health->SetServingStatus(service, is_serving);
}

void GrpcServer::shutdown() {
  // gRPC leaves descriptors open that it is given from now on.
  if (local_.gate) local_.gate->close();
  if (tcp_.gate) tcp_.gate->close();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server_->Wait();
}

}  // namespace accel::agent
