#include "launcher/cluster/agents/agent_client.h"

#include <chrono>
#include <cstdlib>

#include <fcntl.h>
#include <grpcpp/create_channel_posix.h>

#include "agent/access/local_caller.h"
#include "agent/calls/call_identity.h"
#include "agent/calls/client_channel.h"
#include "agent/calls/grpc_status.h"
#include "agent/tls/tls_credentials.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

constexpr const char* kDefaultFolder = "/run/accel";
constexpr std::string_view kAgentSocket = "/agent.sock";
constexpr std::string_view kTicketSocket = "/tickets.sock";
constexpr std::chrono::seconds kAgentCallDeadline{30};
// Of an agent that listens and does not answer, as on a machine with too much to do; one that does not listen is known at
// once, and tried again after 0.1 s.
constexpr std::chrono::milliseconds kAgentConnectLimit{5'000};

Result<void> check_tcp(const AgentAddress& to) {
  if (to.tcp.find(':') == std::string::npos)
    return Error(ErrorCode::kUsage,
                 "'" + printable(to.tcp) + "' is no address of an agent",
                 "give ADDR:PORT, or the path of the folder of its sockets");
  if (!to.insecure && to.tls_dir.empty())
    return Error(ErrorCode::kTls,
                 "the agent at " + printable(to.tcp) +
                     " is reached by TLS, and no folder of certificates is named",
                 "give --tls-dir DIR, or --insecure for an address on loopback");
  return {};
}

Result<std::shared_ptr<v1::Control::Stub>> connect_locally(const std::string& path) {
  auto socket = agent::connect_to_socket(path, SOCK_STREAM);
  if (!socket) return std::move(socket).error();
  ::fcntl(socket->get(), F_SETFL, ::fcntl(socket->get(), F_GETFL) | O_NONBLOCK);
  return std::shared_ptr<v1::Control::Stub>(
      v1::Control::NewStub(grpc::CreateCustomInsecureChannelFromFd(
          path, socket->release(), agent::client_channel_arguments(kAgentConnectLimit))));
}

}  // namespace

AgentAddress parse_agent_address(std::string text, const std::string& tls_dir, bool insecure) {
  if (text.empty()) {
    const char* named = std::getenv("ACCEL_AGENT");
    text = named != nullptr && *named != '\0' ? named : kDefaultFolder;
  }
  AgentAddress address;
  address.insecure = insecure;
  address.tls_dir = tls_dir;
  if (text.find('/') == std::string::npos && !text.starts_with('.')) {
    address.tcp = text;
    return address;
  }
  for (const std::string_view socket : {kAgentSocket, kTicketSocket}) {
    if (text.ends_with(socket)) text.resize(text.size() - socket.size());
  }
  address.socket_folder = text;
  return address;
}

Result<AgentClient> AgentClient::make(AgentAddress address) {
  AgentClient client(std::move(address));
  const AgentAddress& to = client.address_;
  if (!to.socket_folder.empty()) return client;
  if (const auto good = check_tcp(to); !good) return good.error();
  agent::TlsFiles files;
  if (!to.insecure) {
    auto found = agent::tls_files_in(to.tls_dir);
    if (!found) return std::move(found).error();
    files = *std::move(found);
  }
  auto credentials = agent::client_credentials(files, to.insecure);
  if (!credentials) return std::move(credentials).error();
  client.tcp_stub_ = v1::Control::NewStub(grpc::CreateCustomChannel(
      to.tcp, *credentials, agent::client_channel_arguments(kAgentConnectLimit)));
  return client;
}

Result<Call> AgentClient::begin(Kind kind) const {
  Call call = {.stub = tcp_stub_,
               .context = std::make_unique<grpc::ClientContext>(),
               .ticket_connection = {}};
  if (!address_.socket_folder.empty()) {
    auto stub = connect_locally(address_.socket_folder + std::string(kAgentSocket));
    if (!stub) return std::move(stub).error();
    call.stub = *std::move(stub);
    auto ticket = agent::fetch_ticket(address_.socket_folder + std::string(kTicketSocket));
    if (!ticket) return std::move(ticket).error();
    call.context->AddMetadata(agent::kTicketMetadata, ticket->text);
    call.ticket_connection = std::move(ticket->connection);
  }
  if (kind == Kind::kUnary)
    call.context->set_deadline(std::chrono::system_clock::now() + kAgentCallDeadline);
  return call;
}

Error AgentClient::to_error(const grpc::Status& status) const {
  return agent::to_error(
      status, {.endpoint = address_.socket_folder.empty() ? address_.tcp : address_.socket_folder});
}

}  // namespace accel::cluster
