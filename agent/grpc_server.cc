#include "agent/grpc_server.h"

#include <chrono>

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/resource_quota.h>

#include "agent/tls_credentials.h"

namespace accel::agent {
namespace {

constexpr int kMaxThreads = 8;
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
  builder.SetResourceQuota(
      grpc::ResourceQuota("accel-agent").Resize(kMaxMemoryBytes).SetMaxThreads(kMaxThreads * 4));
}

}  // namespace

ConnectionLimits connection_limits(const AgentConfig& config) {
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
  int unix_port = 0;
  if (!socket_path.empty()) {
    builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials(), &unix_port);
  }
  if (!config.listen.empty()) {
    auto credentials = server_credentials(config);
    if (!credentials) return std::move(credentials).error();
    const auto address = parse_tcp_address(config.listen);
    if (!address) return address.error();
    auto gate = ConnectionGate::open(*address, connection_limits(config));
    if (!gate) return std::move(gate).error();
    made->gate_ = *std::move(gate);
    made->acceptor_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, *credentials);
  }
  for (grpc::Service* service : services) builder.RegisterService(service);
  made->server_ = builder.BuildAndStart();
  if (made->server_ == nullptr) {
    return Error(ErrorCode::kFileIo,
                 "cannot listen at " + (socket_path.empty() ? config.listen : socket_path),
                 "see who owns the folder, and whether the path has at most 107 bytes");
  }
  if (made->gate_) {
    made->gate_->start(
        {.on_connection =
             [acceptor = made->acceptor_.get()](UniqueFd connection) {
               grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters given;
               given.fd = connection.release();
               acceptor->HandleNewConnection(&given);
             },
         .on_refused = std::move(on_refused)});
  }
  return made;
}

void GrpcServer::set_health(const std::string& service, bool is_serving) {
  auto* health = server_->GetHealthCheckService();
  if (health != nullptr) health->SetServingStatus(service, is_serving);
}

void GrpcServer::shutdown() {
  // gRPC leaves descriptors open that it is given from now on.
  if (gate_) gate_->close();
  server_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
  server_->Wait();
}

}  // namespace accel::agent
