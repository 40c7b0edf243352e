// A rendezvous of N simulated agents with a TCP connection and mutual TLS each, and the loss of one of them. All in one
// process with the coordinator: step functions, wire, gRPC and TLS are the real ones; shims and records are not there.
//
//   rendezvous_sockets N
//
// Prints one JSON object: seconds to connect and say Hello, from the first Join to the last Start, from the end of one
// agent to its loss, from the loss to the Stop at the last survivor; and the connections that the coordinator's port
// had. Fails unless every agent got a place of its own in the same world.

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/client_channel.h"
#include "agent/coordinator/member.h"
#include "agent/grpc_server.h"
#include "agent/rendezvous/coordinator_host.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/session_client.h"
#include "agent/rendezvous/wire.h"
#include "agent/ticket_book.h"
#include "agent/tls_authority.h"
#include "agent/tls_credentials.h"

namespace {

using namespace accel;
using namespace accel::agent;

constexpr const char* kJob = "bench";
constexpr int kProcsPerNode = 8;

[[noreturn]] void fail(const std::string& why) {
  std::fprintf(stderr, "rendezvous_sockets: %s\n", why.c_str());
  std::exit(1);
}

double seconds_between(TimePoint begin, TimePoint end) {
  return std::chrono::duration<double>(end - begin).count();
}

TlsFiles issue(const std::string& folder, const std::string& name) {
  auto made = issue_certificate({.folder = folder, .role = "node", .name = name});
  if (!made) fail(made.error().message());
  return {*made + "/ca.pem", *made + "/cert.pem", *made + "/key.pem"};
}

// Established connections whose local port is the coordinator's.
int count_connections(int port) {
  char wanted[8];
  std::snprintf(wanted, sizeof wanted, ":%04X", static_cast<unsigned>(port));
  int count = 0;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    while (std::getline(table, line)) {
      std::istringstream fields(line);
      std::string number, local, remote, state;
      fields >> number >> local >> remote >> state;
      if (local.ends_with(wanted) && state == "01") ++count;
    }
  }
  return count;
}

v1::JobSpec make_spec(int nodes) {
  v1::JobSpec spec;
  spec.set_job_id(kJob);
  spec.set_job_uuid(kJob);
  spec.set_min_nodes(static_cast<std::uint32_t>(nodes));
  spec.set_max_nodes(static_cast<std::uint32_t>(nodes));
  spec.set_procs_per_node(kProcsPerNode);
  spec.mutable_restart()->set_max_restarts(3);
  // As much as a command line and its environment take.
  spec.add_argv(std::string(2'048, 'x'));
  return spec;
}

class Bench;

// An agent whose workers are parked, started and gone at once.
class SimulatedAgent {
 public:
  SimulatedAgent(Bench& bench,
                 boost::asio::io_context& loop,
                 int number,
                 const std::string& target,
                 const std::shared_ptr<grpc::ChannelCredentials>& credentials);
  void connect() { session_.connect(); }
  void join();
  void tick() {
    if (!is_dead_) handle(MemberTick{});
  }
  void die();

 private:
  void handle(decltype(MemberEvent::what) what);
  void on_message(const v1::CoordMsg& message);
  void carry_out(const MemberAction& action);
  void park(const ParkWorkers& order);

  Bench& bench_;
  boost::asio::io_context& loop_;
  MemberState state_;
  bool is_greeted_ = false;
  bool is_dead_ = false;
  SessionClient session_;
};

//   connecting --all greeted--> joining --all started--> one ends --lost, all others stopped--> printed
class Bench {
 public:
  Bench(int nodes, const std::string& folder) : nodes_(nodes) {
    config_.listen = "127.0.0.1:0";
    config_.tls = issue(folder, "coordinator");
    config_.max_connections = config_.max_connections_each = nodes + 8;
    CoordinatorHostOptions options;
    options.authenticate = [this](const CallIdentity& call) {
      return authenticate(call, tickets_, config_, ::geteuid());
    };
    options.report = [this](const Report& report) {
      if (report.kind != ReportKind::kNodeLost) return;
      if (died_ == TimePoint{}) fail("this machine is too busy: lost " + report.node_id);
      lost_ = SteadyClock().now();
    };
    options.audit = [](const std::string& line) { fail(line); };
    host_ = std::make_unique<CoordinatorHost>(loop_, std::move(options));
    auto server = GrpcServer::start(config_, "", {host_.get()});
    if (!server) fail(server.error().message());
    server_ = *std::move(server);
    host_->handle(StartJob{.request_id = "1", .job = describe_job(make_spec(nodes))});
    const std::string target = "127.0.0.1:" + std::to_string(server_->tcp_port());
    for (int i = 0; i < nodes; ++i) {
      // A certificate speaks for its own node alone.
      auto credentials = client_credentials(issue(folder, "n" + std::to_string(i)), false);
      if (!credentials) fail(credentials.error().message());
      agents_.push_back(std::make_unique<SimulatedAgent>(*this, loop_, i, target, *credentials));
    }
  }

  [[noreturn]] void run() {
    begun_ = SteadyClock().now();
    for (auto& agent : agents_) agent->connect();
    tick();
    loop_.run();
    std::printf(
        "{\"connect_s\": %.6f, \"rendezvous_s\": %.6f, \"loss_seen_s\": %.6f, \"stop_s\": %.6f, "
        "\"connections\": %d, \"world_size\": %d}\n",
        seconds_between(begun_, joined_),
        seconds_between(joined_, started_),
        seconds_between(died_, lost_),
        seconds_between(lost_, stopped_),
        num_connections_,
        world_size_);
    std::fflush(stdout);
    // gRPC's own threads and the streams need no farewell.
    std::_Exit(0);
  }

  void on_greeted() {
    if (++num_greeted_ < nodes_) return;
    num_connections_ = count_connections(server_->tcp_port());
    joined_ = SteadyClock().now();
    for (auto& agent : agents_) agent->join();
  }

  void on_parked(const Assign& assign) {
    if (!places_.insert(assign.node_index).second || assign.num_nodes != nodes_)
      fail("a place was given twice, or the nodes do not agree on their number");
    world_size_ = assign.world_size;
  }

  void on_started() {
    if (++num_started_ < nodes_) return;
    started_ = SteadyClock().now();
    if (world_size_ != nodes_ * kProcsPerNode) fail("the world has another size");
    // What the start left to do is not counted with the loss.
    timer_.expires_after(std::chrono::seconds(1));
    timer_.async_wait([this](const boost::system::error_code&) {
      died_ = SteadyClock().now();
      agents_.back()->die();
    });
  }

  void on_stopped() {
    if (lost_ == TimePoint{}) fail("workers were stopped before a node was lost");
    if (++num_stopped_ < nodes_ - 1) return;
    stopped_ = SteadyClock().now();
    loop_.stop();
  }

 private:
  // Agents beat meanwhile, as real ones do.
  void tick() {
    ticks_.expires_after(std::chrono::milliseconds(250));
    ticks_.async_wait([this](const boost::system::error_code&) {
      for (auto& agent : agents_) agent->tick();
      tick();
    });
  }

  const int nodes_;
  boost::asio::io_context loop_{1};
  boost::asio::steady_timer ticks_{loop_};
  boost::asio::steady_timer timer_{loop_};
  SteadyClock clock_;
  TicketBook tickets_{clock_};
  AgentConfig config_;
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<GrpcServer> server_;
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  std::set<int> places_;
  int world_size_ = 0;
  int num_greeted_ = 0;
  int num_started_ = 0;
  int num_stopped_ = 0;
  int num_connections_ = 0;
  TimePoint begun_{};
  TimePoint joined_{};
  TimePoint started_{};
  TimePoint died_{};
  TimePoint lost_{};
  TimePoint stopped_{};
};

SimulatedAgent::SimulatedAgent(Bench& bench,
                               boost::asio::io_context& loop,
                               int number,
                               const std::string& target,
                               const std::shared_ptr<grpc::ChannelCredentials>& credentials)
    : bench_(bench),
      loop_(loop),
      session_(loop,
               grpc::CreateCustomChannel(target, credentials, client_channel_arguments()),
               {.on_open = [this] { handle(Connected{}); },
                .on_message = [this](const v1::CoordMsg& message) { on_message(message); },
                .on_closed =
                    [this](const grpc::Status& status) {
                      if (!is_dead_) fail("a session ended: " + status.error_message());
                    }}) {
  state_.node.node_id = "n" + std::to_string(number);
  state_.node.boot_id = "boot";
  state_.node.hostname = "node-" + std::to_string(10'000 + number);
  state_.node.addresses = {"10.0." + std::to_string(number / 250) + "." +
                           std::to_string(number % 250)};
  state_.node.slots = kProcsPerNode;
  state_.session_id = to_hex(random_bytes(16));
}

void SimulatedAgent::join() {
  handle(WantJob{Join{.job_uuid = kJob, .slots = kProcsPerNode}});
}

// Its stream ends, as the kernel ends the connections of a process that is killed.
void SimulatedAgent::die() {
  is_dead_ = true;
  session_.close([] {});
}

void SimulatedAgent::on_message(const v1::CoordMsg& message) {
  if (is_dead_) return;
  auto decoded = from_proto(message);
  if (!decoded) fail("a message that is none");
  handle(FromCoordinator{*std::move(decoded)});
  if (message.has_welcome() && !std::exchange(is_greeted_, true)) bench_.on_greeted();
}

void SimulatedAgent::handle(decltype(MemberEvent::what) what) {
  MemberStep next =
      step(std::move(state_), MemberEvent{.at = SteadyClock().now(), .what = std::move(what)});
  state_ = std::move(next.state);
  for (const MemberAction& action : next.actions) carry_out(action);
}

void SimulatedAgent::carry_out(const MemberAction& action) {
  if (const auto* send = std::get_if<SendUp>(&action)) {
    session_.send(to_proto(send->message));
  } else if (const auto* order = std::get_if<ParkWorkers>(&action)) {
    bench_.on_parked(order->assign);
    park(*order);
  } else if (std::holds_alternative<ReleaseWorkers>(action)) {
    bench_.on_started();
  } else if (std::holds_alternative<StopWorkers>(action)) {
    bench_.on_stopped();
  }
}

// The node of rank 0 asks who the others are, as a real one does before it opens its store.
void SimulatedAgent::park(const ParkWorkers& order) {
  const WorkersParked parked = {
      .job_uuid = kJob, .generation = order.generation, .store_endpoint = "10.0.0.0:29500"};
  const auto done = [this, parked] { handle(parked); };
  if (order.assign.node_index != 0) return boost::asio::post(loop_, done);
  session_.get_members(kJob, [done, nodes = order.assign.num_nodes](const auto& members) {
    if (static_cast<int>(members.size()) != nodes) fail("the list of members is not whole");
    done();
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int nodes = argc > 1 ? std::atoi(argv[1]) : 64;
  if (nodes < 2 || nodes > 4'000) fail("give 2 to 4000 agents");
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  char folder[] = "/tmp/accel-rendezvous-XXXXXX";
  if (::mkdtemp(folder) == nullptr) fail("no folder in /tmp");
  const pid_t child = ::fork();
  if (child < 0) fail("no process");
  if (child == 0) Bench(nodes, folder).run();
  // The folder goes when the bench has ended, however it did.
  int status = 1;
  (void)::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
