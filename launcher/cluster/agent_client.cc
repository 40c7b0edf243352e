#include "launcher/cluster/agent_client.h"

#include <chrono>
#include <cstdlib>

#include "agent/control_service.h"
#include "agent/grpc_server.h"
#include "agent/ticket_server.h"
#include "agent/tls_credentials.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

constexpr const char* kDefaultFolder = "/run/accel";
constexpr std::chrono::seconds kUnaryDeadline{30};

grpc::ChannelArguments channel_arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(agent::kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  // An agent that is restarted is back within seconds.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  return arguments;
}

}  // namespace

AgentAddress parse_agent_address(std::string text, const std::string& tls_dir, bool insecure) {
  if (text.empty()) {
    const char* named = std::getenv("ACCEL_AGENT");
    text = named != nullptr && *named != '\0' ? named : kDefaultFolder;
  }
  AgentAddress address;
  address.insecure = insecure;
  if (!tls_dir.empty()) {
    address.tls = {tls_dir + "/ca.pem", tls_dir + "/cert.pem", tls_dir + "/key.pem"};
  }
  if (!text.starts_with('/') && !text.starts_with('.')) {
    address.tcp = text;
    return address;
  }
  constexpr std::string_view kSocket = "/agent.sock";
  if (text.ends_with(kSocket)) text.resize(text.size() - kSocket.size());
  address.socket_folder = text;
  return address;
}

Result<AgentClient> AgentClient::make(AgentAddress address) {
  AgentClient client(std::move(address));
  const AgentAddress& to = client.address_;
  std::shared_ptr<grpc::Channel> channel;
  if (!to.socket_folder.empty()) {
    channel = grpc::CreateCustomChannel("unix:" + to.socket_folder + "/agent.sock",
                                        grpc::InsecureChannelCredentials(),
                                        channel_arguments());
  } else {
    auto credentials = agent::client_credentials(to.tls, to.insecure);
    if (!credentials) return std::move(credentials).error();
    channel = grpc::CreateCustomChannel(to.tcp, *credentials, channel_arguments());
  }
  client.stub_ = v1::Control::NewStub(channel);
  return client;
}

Result<Call> AgentClient::begin(Kind kind) const {
  Call call = {.context = std::make_unique<grpc::ClientContext>(), .ticket_connection = {}};
  if (!address_.socket_folder.empty()) {
    auto ticket = agent::fetch_ticket(address_.socket_folder + "/tickets.sock");
    if (!ticket) return std::move(ticket).error();
    call.context->AddMetadata(agent::kTicketMetadata, ticket->text);
    call.ticket_connection = std::move(ticket->connection);
  }
  if (kind == Kind::kUnary)
    call.context->set_deadline(std::chrono::system_clock::now() + kUnaryDeadline);
  return call;
}

// The agent sends the message and, on a second line, what to do about it.
Error AgentClient::to_error(const grpc::Status& status) const {
  const std::string text = printable(status.error_message());
  const std::size_t end = text.find('\n');
  const std::string message = text.substr(0, end);
  const std::string remedy = end == std::string::npos ? "" : text.substr(end + 1);
  switch (status.error_code()) {
    case grpc::StatusCode::INVALID_ARGUMENT:
      return Error(ErrorCode::kInvalidArgument, message, remedy);
    case grpc::StatusCode::PERMISSION_DENIED:
      return Error(ErrorCode::kAgentRefused, message, remedy);
    case grpc::StatusCode::NOT_FOUND:
      return Error(ErrorCode::kJobUnknown, message, remedy);
    case grpc::StatusCode::UNAUTHENTICATED:
      return Error(ErrorCode::kAuthentication, message, remedy);
    case grpc::StatusCode::FAILED_PRECONDITION:
      return Error(ErrorCode::kCoordinatorLost, message, remedy);
    case grpc::StatusCode::UNIMPLEMENTED:
      return Error(ErrorCode::kUnsupported, message, remedy);
    case grpc::StatusCode::UNAVAILABLE:
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return Error(ErrorCode::kAgentUnreachable,
                   "no answer from " +
                       (address_.socket_folder.empty() ? address_.tcp : address_.socket_folder) +
                       ": " + message);
    default:
      return Error(ErrorCode::kInternal, message, remedy);
  }
}

}  // namespace accel::cluster
