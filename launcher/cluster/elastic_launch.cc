// accel-launch over several nodes.
//
// Each node runs the same command. The launcher whose address the endpoint is hosts the coordinator beside its own part
// of the job; all of them, that one too, are nodes with a session of their own. The coordinator lives as long as its
// launcher: when that node goes, the job goes with it, after a grace, and every launcher says so (docs/rendezvous.md).
//
//   joining --Welcome--> in the job --job ended--> closing --shim ended, session closed--> ended
//      |                    |  '--SIGINT, SIGTERM: leave, the others go on without us--^
//      '--join limit--------'--no coordinator for longer than the grace--> ended with an error

#include <csignal>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <arpa/inet.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/grpc_server.h"
#include "agent/rendezvous/coordinator_host.h"
#include "agent/rendezvous/node_member.h"
#include "agent/rendezvous/token_proof.h"
#include "agent/tls_credentials.h"
#include "agent/worker_end.h"
#include "launcher/cluster/entry.h"
#include "launcher/elastic_settings.h"
#include "runtime/printable.h"

namespace accel::cluster {
namespace {

namespace asio = boost::asio;
using agent::NoticeKind;

constexpr const char* kProgram = "accel-launch";
// How long workers go on without a coordinator that lives in another launcher: it will not come back.
constexpr std::chrono::seconds kControlLossGrace{10};
// How long we try to come back, without workers, while its host does not even refuse us: the network may heal.
constexpr std::chrono::seconds kPartitionGrace{60};
// How long the hosting launcher waits for the others to hear of the end.
constexpr std::chrono::seconds kFarewell{5};

int fail(const Error& error) {
  std::fprintf(stderr, "%s\n", error.render(kProgram).c_str());
  return error_info(error.code()).exit_status;
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

SocketAddress make_socket_address(const agent::TcpAddress& address) {
  SocketAddress made;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&made.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&made.storage);
  if (::inet_pton(AF_INET, address.host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(address.port);
    made.size = sizeof *v4;
  } else {
    ::inet_pton(AF_INET6, address.host.c_str(), &v6->sin6_addr);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(address.port);
    made.size = sizeof *v6;
  }
  return made;
}

// Whether the endpoint is an address of this machine, with nobody there yet.
bool is_ours_and_free(const agent::TcpAddress& address) {
  const SocketAddress wanted = make_socket_address(address);
  const UniqueFd probe(::socket(wanted.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(probe.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  return ::bind(probe.get(), wanted.get(), wanted.size) == 0 && ::listen(probe.get(), 1) == 0;
}

// The address that packets to the endpoint leave from: by it other nodes reach us.
std::string own_address_towards(const agent::TcpAddress& endpoint) {
  const SocketAddress to = make_socket_address(endpoint);
  const UniqueFd probe(::socket(to.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  char text[INET6_ADDRSTRLEN] = {};
  if (::connect(probe.get(), to.get(), to.size) != 0 ||
      ::getsockname(probe.get(), reinterpret_cast<sockaddr*>(&own), &size) != 0) {
    return endpoint.host;
  }
  const void* bytes =
      own.ss_family == AF_INET
          ? static_cast<const void*>(&reinterpret_cast<sockaddr_in*>(&own)->sin_addr)
          : static_cast<const void*>(&reinterpret_cast<sockaddr_in6*>(&own)->sin6_addr);
  return ::inet_ntop(own.ss_family, bytes, text, sizeof text);
}

std::string host_name() {
  char name[128] = {};
  ::gethostname(name, sizeof name - 1);
  return *name == '\0' ? "localhost" : name;
}

std::string boot_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

google::protobuf::Duration duration_of(std::chrono::milliseconds time) {
  google::protobuf::Duration out;
  out.set_seconds(time.count() / 1000);
  out.set_nanos(static_cast<int>(time.count() % 1000) * 1'000'000);
  return out;
}

// What the coordinator must know of the job; the program stays with each node.
v1::JobSpec describe(const launcher::ElasticRequest& request) {
  const auto& [settings, spec] = request;
  v1::JobSpec job;
  job.set_job_id(settings.job);
  job.set_job_uuid(settings.job);
  job.set_min_nodes(static_cast<std::uint32_t>(settings.min_nodes));
  job.set_max_nodes(static_cast<std::uint32_t>(settings.max_nodes));
  job.set_procs_per_node(static_cast<std::uint32_t>(spec.workers.size()));
  job.mutable_restart()->set_max_restarts(static_cast<std::uint32_t>(spec.restart.max_restarts));
  *job.mutable_stop()->mutable_grace() = duration_of(spec.stop.grace);
  job.mutable_stop()->set_signal(spec.stop.signal);
  *job.mutable_gather()->mutable_join_limit() =
      duration_of(std::chrono::seconds(settings.join_timeout_seconds));
  *job.mutable_fence()->mutable_control_loss_grace() = duration_of(kControlLossGrace);
  job.mutable_fence()->set_hard(settings.hard_fencing);
  *job.mutable_fence()->mutable_lease() = duration_of(settings.lease);
  return job;
}

class ElasticLaunch {
 public:
  explicit ElasticLaunch(launcher::ElasticRequest request)
      : request_(std::move(request)), signals_(loop_), patience_(loop_), farewell_(loop_) {}

  Result<int> run() {
    auto endpoint = agent::parse_tcp_address(request_.settings.endpoint);
    if (!endpoint) return endpoint.error();
    if (request_.settings.insecure && !endpoint->is_loopback) {
      return Error(ErrorCode::kInvalidArgument,
                   "--rdzv_insecure is for loopback addresses, and the endpoint is " +
                       request_.settings.endpoint,
                   "make certificates with `accel-agent init-tls` and give --rdzv_tls_dir");
    }
    auto token = agent::read_token(request_.settings.token_file);
    if (!token) return std::move(token).error();
    key_ = agent::token_key(*token);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) signals_.add(signal);
    wait_for_signal();
    if (auto hosted = host_coordinator(*endpoint); !hosted) return std::move(hosted).error();
    if (auto joined = join(*endpoint); !joined) return std::move(joined).error();
    loop_.run();
    if (closer_.joinable()) closer_.join();
    member_.reset();
    if (error_) return *error_;
    return status_;
  }

 private:
  agent::AgentConfig server_config() const {
    const auto& settings = request_.settings;
    agent::AgentConfig config;
    config.listen = settings.endpoint;
    config.insecure = settings.insecure;
    config.tls = tls_files();
    return config;
  }

  agent::TlsFiles tls_files() const {
    const std::string& dir = request_.settings.tls_dir;
    return {dir + "/ca.pem", dir + "/cert.pem", dir + "/key.pem"};
  }

  Result<void> host_coordinator(const agent::TcpAddress& endpoint) {
    if (!is_ours_and_free(endpoint)) return {};
    config_ = server_config();
    agent::CoordinatorHostOptions options;
    options.token_key = key_;
    options.takes_jobs_from_joins = true;
    options.authenticate = [this](const agent::CallIdentity& call) {
      return agent::authenticate(call, tickets_, config_, ::geteuid());
    };
    options.report = [this](const agent::Report& report) {
      say(report.text.empty() ? "" : describe_report(report));
    };
    options.audit = [this](const std::string& line) { say("coordinator: " + line); };
    coordinator_ = std::make_unique<agent::CoordinatorHost>(loop_, std::move(options));
    auto server = agent::GrpcServer::start(config_, "", {coordinator_.get()});
    // Another launcher of this machine was quicker: it is the host.
    if (!server && !is_ours_and_free(endpoint)) {
      coordinator_.reset();
      return {};
    }
    if (!server) return std::move(server).error();
    server_ = *std::move(server);
    return {};
  }

  Result<void> join(const agent::TcpAddress& endpoint) {
    auto credentials = agent::client_credentials(tls_files(), request_.settings.insecure);
    if (!credentials) return std::move(credentials).error();
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
    arguments.SetMaxReceiveMessageSize(agent::kMaxMessageBytes);
    // A host that swallows packets: an attempt to connect ends after 3 s, a connection 5 s after what is not
    // acknowledged (keepalive sets TCP_USER_TIMEOUT).
    arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 3'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
    const auto open_channel = [arguments, credentials = *credentials](const std::string& address) {
      return grpc::CreateCustomChannel(address, credentials, arguments);
    };
    agent::NodeMemberOptions options;
    // A leader is believed by its certificate, of the role node; without certificates only on this machine.
    options.open_channel = [open_channel, is_insecure = request_.settings.insecure](
                               const std::string& address) -> std::shared_ptr<grpc::Channel> {
      const auto leader = agent::parse_tcp_address(address);
      if (!leader || (is_insecure && !leader->is_loopback)) return nullptr;
      return open_channel(address);
    };
    const std::string own_host = host_name();
    options.node.node_id = request_.settings.node_id.empty()
                               ? own_host + "-" + std::to_string(::getpid())
                               : request_.settings.node_id;
    options.node.boot_id = boot_id();
    options.node.hostname = own_host;
    options.node.addresses = {own_address_towards(endpoint)};
    options.node.slots = static_cast<int>(request_.spec.workers.size());
    options.token_key = key_;
    options.job = describe(request_);
    options.workers = {.job_uuid = request_.settings.job,
                       .spec = request_.spec,
                       .shim = {},
                       .address = options.node.addresses[0]};
    options.workers.spec.node_id = options.node.node_id;
    member_ = std::make_unique<agent::NodeMember>(
        loop_,
        open_channel(request_.settings.endpoint),
        std::move(options),
        agent::NodeMember::Handlers{
            .on_notice = [this](const agent::Notice& notice) { on_notice(notice); },
            .on_line = [this](const std::string& line) { say(line); },
            .on_connection = [this](bool is_connected,
                                    const std::string& why) { on_connection(is_connected, why); },
            .on_refused = [this](const std::string& why) { on_refused(why); },
            .on_finished = [this] { close(); }});
    wait_for_coordinator(std::chrono::seconds(request_.settings.join_timeout_seconds));
    member_->start();
    return {};
  }

  static std::string describe_report(const agent::Report& report) {
    return report.node_id.empty() ? report.text : "node " + report.node_id + ": " + report.text;
  }

  void say(const std::string& line) const {
    if (!request_.settings.quiet && !line.empty())
      std::fprintf(stderr, "%s: %s\n", kProgram, printable(line).c_str());
  }

  // ---- what happens ----

  void on_connection(bool is_connected, const std::string& why) {
    if (!why.empty()) last_trouble_ = printable(why);
    if (is_connected) {
      was_welcome_ = is_welcome_ = true;
      patience_.cancel();
      return;
    }
    if (is_welcome_) {
      has_run_ = has_run_ || !member_->workers().pids().empty();
      say("the coordinator at " + request_.settings.endpoint + " is gone: " + why);
      wait_for_coordinator(kControlLossGrace);
    }
    is_welcome_ = false;
  }

  // One that believed us before is not the one that refuses us now: its launcher is gone, and another one of a job that
  // begins anew has the address.
  void on_refused(const std::string& why) {
    if (!has_run_) return end_with(Error(ErrorCode::kAuthentication, why));
    end_with(Error(ErrorCode::kCoordinatorLost,
                   "another coordinator has the endpoint " + request_.settings.endpoint + " now"));
  }

  // The host is there and nobody listens: the launcher that was the coordinator has ended.
  [[nodiscard]] bool is_refused() const {
    return last_trouble_.find("refused") != std::string::npos ||
           last_trouble_.find("reset by peer") != std::string::npos;
  }

  void wait_for_coordinator(std::chrono::seconds limit) {
    patience_.expires_after(limit);
    patience_.async_wait([this, limit](const boost::system::error_code& error) {
      if (error || is_ending_) return;
      if (was_welcome_ && limit < kPartitionGrace && !is_refused()) {
        patience_.expires_after(kPartitionGrace - limit);
        return patience_.async_wait([this](const boost::system::error_code& cancelled) {
          if (!cancelled) give_up_on_coordinator(kPartitionGrace);
        });
      }
      give_up_on_coordinator(limit);
    });
  }

  void give_up_on_coordinator(std::chrono::seconds limit) {
    if (is_ending_) return;
    const std::string where = "the coordinator at " + request_.settings.endpoint;
    if (was_welcome_) {
      end_with(Error(ErrorCode::kCoordinatorLost,
                     where + " did not answer for " + std::to_string(limit.count()) + " s"));
    } else {
      end_with(
          Error(ErrorCode::kRendezvousTimeout,
                where + " could not be reached within " + std::to_string(limit.count()) + " s"));
    }
  }

  void on_notice(const agent::Notice& notice) {
    if (notice.kind == NoticeKind::kParked || notice.kind == NoticeKind::kPreempt)
      return say(notice.text);
    if (is_ending_) return;
    is_ending_ = true;
    const auto& outcome = member_->workers().outcome();
    if (notice.kind != NoticeKind::kSucceeded) {
      status_ =
          outcome && outcome->first_failure && outcome->exit_code != 0 ? outcome->exit_code : 1;
      say("the job " + std::string(notice.kind == NoticeKind::kFailed ? "failed" : "was stopped") +
          ": " + notice.text);
      if (outcome) std::fputs(agent::describe_outcome(*outcome).c_str(), stderr);
    }
    tell_ledger();
    member_->finish();
  }

  // Where the job's time went; the coordinator knows, and it is here or with another launcher.
  void tell_ledger() const {
    if (!coordinator_) return;
    const auto job = coordinator_->state().jobs.find(request_.settings.job);
    if (job == coordinator_->state().jobs.end()) return;
    say("time of the job: " +
        agent::describe(agent::settled(job->second.ledger, SteadyClock().now())));
  }

  void end_with(Error error) {
    if (is_ending_) return;
    is_ending_ = true;
    if (!last_trouble_.empty()) error.with_detail("last", last_trouble_);
    error_ = std::move(error);
    member_->leave("gives up");
  }

  void wait_for_signal() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      if (num_signals_++ == 0 && !is_ending_) {
        is_ending_ = true;
        status_ = 128 + signal;
        member_ ? member_->leave("stopped by a signal") : loop_.stop();
      } else if (member_) {
        member_->kill();
      }
      wait_for_signal();
    });
  }

  // ---- the end ----

  void close() {
    if (is_closing_) return;
    is_closing_ = true;
    patience_.cancel();
    member_->close([this] { close_coordinator(); });
  }

  // The others hear of the end from the coordinator: it stays until they have gone.
  void close_coordinator() {
    if (!server_) return quit();
    farewell_end_ = SteadyClock().now() + kFarewell;
    wait_for_farewells();
  }

  void wait_for_farewells() {
    const bool is_over = coordinator_->num_sessions() == 0 || SteadyClock().now() >= farewell_end_;
    if (!is_over) {
      farewell_.expires_after(std::chrono::milliseconds(20));
      farewell_.async_wait([this](const boost::system::error_code& error) {
        if (!error) wait_for_farewells();
      });
      return;
    }
    coordinator_->close();
    closer_ = std::thread([this] {
      server_->shutdown();
      asio::post(loop_, [this] { quit(); });
    });
  }

  void quit() {
    signals_.cancel();
    loop_.stop();
  }

  launcher::ElasticRequest request_;
  agent::AgentConfig config_;
  SteadyClock clock_;
  agent::TicketBook tickets_{clock_};
  std::string key_;
  asio::io_context loop_{1};
  asio::signal_set signals_;
  asio::steady_timer patience_;
  asio::steady_timer farewell_;
  TimePoint farewell_end_{};
  std::unique_ptr<agent::CoordinatorHost> coordinator_;
  std::unique_ptr<agent::GrpcServer> server_;
  std::unique_ptr<agent::NodeMember> member_;
  std::thread closer_;
  int num_signals_ = 0;
  int status_ = 0;
  std::optional<Error> error_;
  std::string last_trouble_;  // what the last connection ended with
  bool has_run_ = false;      // workers ran here under a coordinator that went
  bool was_welcome_ = false;
  bool is_welcome_ = false;
  bool is_ending_ = false;
  bool is_closing_ = false;
};

}  // namespace

int launch_elastic(const char* text) {
  ::signal(SIGPIPE, SIG_IGN);
  auto request = launcher::elastic_request_from_json(text);
  if (!request) return fail(request.error());
  ElasticLaunch launch(*std::move(request));
  const auto status = launch.run();
  return status ? *status : fail(status.error());
}

}  // namespace accel::cluster
