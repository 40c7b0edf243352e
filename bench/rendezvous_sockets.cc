// A rendezvous of N simulated agents, a restart after the failure of one worker, and the loss of one agent. All in one
// process with the coordinator: step functions, wire and gRPC are the real ones; shims and records are not there.
//
//   rendezvous_sockets N [joined|invited] [sockets|memory]
//
// joined: each agent brings itself, as a launcher does. invited: the coordinator asks them, as for a job of `accel run`.
// sockets: a TCP connection with mutual TLS each, three open files an agent. memory: gRPC's channels within a process.
// Agents beat every second, beyond a thousand every N ms: all of them and the coordinator share this process.
//
// Prints one JSON object: seconds to connect and say Hello, from the first Join (or the request) to the last Start, from
// the failure to the last Start after it, from the end of one agent to its loss, from the loss to the Stop at the last
// survivor; the bytes of messages that the coordinator sends and receives for the first generation and for the restart, what
// its sockets carry in all (TCP_INFO), their number, and the threads of the process but for those of agents' certificates. Fails unless every agent got a place
// of its own in the same world, twice.
//
// invited: kFollowers other agents follow the job as well, as for `accel logs -f`, over TCP in both cases. Bytes of a steady job
// are those of kSteady seconds in which nothing happens.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/access/ticket_book.h"
#include "agent/calls/client_channel.h"
#include "agent/calls/grpc_server.h"
#include "agent/cluster/cluster_client.h"
#include "agent/cluster/cluster_service.h"
#include "agent/cluster/cluster_watch.h"
#include "agent/coordinator/member/member.h"
#include "agent/rendezvous/coordinator_host.h"
#include "agent/rendezvous/job_specs.h"
#include "agent/rendezvous/job_wire.h"
#include "agent/rendezvous/session_client.h"
#include "agent/rendezvous/wire.h"
#include "agent/tls/tls_authority.h"
#include "agent/tls/tls_credentials.h"

namespace {

using namespace accel;
using namespace accel::agent;

constexpr const char* kJob = "bench";
constexpr int kProcsPerNode = 8;
constexpr int kFollowers = 16;
constexpr std::chrono::seconds kSteady{40};

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

struct Carried {
  std::uint64_t sent = 0;  // bytes
  std::uint64_t received = 0;
};
using Connections = std::map<unsigned long long, Carried>;  // by the inode of the socket

// What the kernel says of a connection: glibc's tcp_info ends earlier.
struct LongTcpInfo {
  tcp_info head;
  std::uint64_t pacing_rate[2];
  std::uint64_t bytes_acked;
  std::uint64_t bytes_received;
};
static_assert(offsetof(LongTcpInfo, bytes_acked) == 120, "as <linux/tcp.h> has it");

// What the established connections whose local port is the coordinator's have carried, TLS and all.
Connections look_at_connections(int port) {
  Connections seen;  // the gate keeps a duplicate of each
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int fd = std::atoi(entry.path().filename().c_str());
    sockaddr_in local{};
    socklen_t size = sizeof local;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&local), &size) != 0) continue;
    const bool is_inet = local.sin_family == AF_INET || local.sin_family == AF_INET6;
    if (!is_inet || ntohs(local.sin_port) != port) continue;  // the port lies at one place in both
    LongTcpInfo info{};
    size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    struct stat file {};
    constexpr int kEstablished = 1;
    if (info.head.tcpi_state != kEstablished || ::fstat(fd, &file) != 0) continue;
    seen[file.st_ino] = {info.bytes_acked, info.bytes_received};
  }
  return seen;
}

// Of those that are in `which`, or of those that are not.
Carried sum(const Connections& all, const Connections& which, bool is_in) {
  Carried carried;
  for (const auto& [inode, one] : all) {
    if (which.contains(inode) != is_in) continue;
    carried.sent += one.sent;
    carried.received += one.received;
  }
  return carried;
}

// But for those that gRPC has for each certificate: the agents have one each, which is one in a process of their own.
int count_threads() {
  int count = 0;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    count += name.starts_with("FileWatcherCert") ? 0 : 1;
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
  spec.mutable_restart()->mutable_backoff_initial();  // 0: no pause is measured
  // As much as a command line and its environment take.
  spec.add_argv(std::string(2'048, 'x'));
  return spec;
}

struct Setting {
  int nodes = 64;
  bool is_invited = false;
  bool has_sockets = true;
  std::string folder;
};

// Of messages, as they are serialised.
struct Traffic {
  std::uint64_t down = 0;  // bytes from the coordinator
  std::uint64_t up = 0;
};
Traffic operator-(const Traffic& now, const Traffic& before) {
  return {now.down - before.down, now.up - before.up};
}

// An agent that follows the job for somebody.
class Follower {
 public:
  Follower(boost::asio::io_context& loop, AgentConfig config)
      : config_(std::move(config)), client_(loop, config_, ""), watch_(loop, client_) {}
  void begin() {
    following_ = watch_.follow(
        kJob,
        {.on_job = [this](const v1::Job& now) { job = now; },
         .on_gone = [] { fail("a follower: the job is gone"); },
         .on_error = [](const Error& error) { fail("a follower: " + error.message()); }});
  }
  v1::Job job;

 private:
  const AgentConfig config_;
  ClusterClient client_;
  ClusterWatch watch_;
  ClusterWatch::Following following_;
};

class Bench;

// An agent whose workers are parked, started and gone at once.
class SimulatedAgent {
 public:
  SimulatedAgent(Bench& bench,
                 boost::asio::io_context& loop,
                 int number,
                 std::shared_ptr<grpc::Channel> channel);
  void connect() { session_.connect(); }
  void join();
  void tick() {
    if (!is_dead_) handle(MemberTick{});
  }
  void fail_worker();
  void die();

 private:
  void handle(decltype(MemberEvent::what) what);
  void on_message(v1::CoordMsg& message);
  void carry_out(const MemberAction& action);
  void park(const ParkWorkers& order);

  Bench& bench_;
  boost::asio::io_context& loop_;
  MemberState state_;
  SpecsHeld specs_;
  bool is_greeted_ = false;
  bool is_dead_ = false;
  SessionClient session_;
};

//   connecting --all greeted--> forming --all started--> a worker fails --all stopped--> forming again
//     --all started--> an agent ends --lost, all others stopped--> printed
class Bench {
 public:
  explicit Bench(Setting setting) : setting_(std::move(setting)), nodes_(setting_.nodes) {
    CoordinatorHostOptions options;
    options.config.beat_every = std::chrono::milliseconds(std::max(1'000, nodes_));
    options.config.suspect_after = options.config.beat_every * 5 / 2;
    options.config.lost_after = options.config.beat_every * 9 / 2;
    options.authenticate = [this](const CallIdentity& call) {
      if (!setting_.has_sockets) return Result<Caller>(Caller{.role = Role::kNode, .name = "node"});
      return authenticate(call, tickets_, config_, ::geteuid());
    };
    options.report = [this](const Report& report) {
      if (report.kind != ReportKind::kNodeLost) return;
      if (died_ == TimePoint{}) fail("this machine is too busy: lost " + report.node_id);
      lost_ = SteadyClock().now();
    };
    options.audit = [](const std::string& line) { fail(line); };
    options.changed = [this] {
      if (cluster_) cluster_->take_change();
    };
    host_ = std::make_unique<CoordinatorHost>(loop_, std::move(options));
    cluster_ = std::make_unique<ClusterService>(
        ClusterService::Parts{.loop = loop_,
                              .coordinator_loop = loop_,
                              .config = follower_config("cluster"),
                              .token_key = "",
                              .coordinator = host_.get(),
                              .files = files_,
                              .audit = [](const std::string&) {},
                              .audit_refusal = [](const std::string& line) { fail(line); },
                              .agent_uid = ::geteuid()});
    setting_.has_sockets ? listen() : serve_in_memory();
    if (!setting_.is_invited) start_job();
  }

  [[noreturn]] void run() {
    begun_ = SteadyClock().now();
    for (auto& agent : agents_) agent->connect();
    tick();
    loop_.run();
    std::printf(
        "{\"connect_s\": %.6f, \"rendezvous_s\": %.6f, \"restart_s\": %.6f, \"loss_seen_s\": %.6f, "
        "\"stop_s\": %.6f, \"connections\": %d, \"world_size\": %d, \"first_sent\": %llu, "
        "\"first_received\": %llu, \"restart_sent\": %llu, \"restart_received\": %llu, "
        "\"tcp_sent\": %llu, \"tcp_received\": %llu, \"threads\": %d, "
        "\"followers\": %d, \"steady_s\": %d, \"steady_sent\": %llu, \"steady_received\": %llu, "
        "\"steady_tcp_sent\": %llu, \"steady_tcp_received\": %llu, \"following_steady\": %llu, "
        "\"following_restart\": %llu}\n",
        seconds_between(begun_, joined_),
        seconds_between(joined_, started_),
        seconds_between(failed_, restarted_),
        seconds_between(died_, lost_),
        seconds_between(lost_, stopped_),
        num_connections_,
        world_size_,
        static_cast<unsigned long long>(first_.down),
        static_cast<unsigned long long>(first_.up),
        static_cast<unsigned long long>(restart_.down),
        static_cast<unsigned long long>(restart_.up),
        static_cast<unsigned long long>(carried_.sent),
        static_cast<unsigned long long>(carried_.received),
        num_threads_,
        static_cast<int>(followers_.size()),
        static_cast<int>(kSteady.count()),
        static_cast<unsigned long long>(steady_.down),
        static_cast<unsigned long long>(steady_.up),
        static_cast<unsigned long long>(steady_carried_.sent),
        static_cast<unsigned long long>(steady_carried_.received),
        static_cast<unsigned long long>(following_steady_),
        static_cast<unsigned long long>(following_restart_));
    std::fflush(stdout);
    // gRPC's own threads and the streams need no farewell.
    std::_Exit(0);
  }

  void on_greeted() {
    if (++num_greeted_ < nodes_) return;
    joined_ = SteadyClock().now();
    before_ = traffic;
    if (setting_.is_invited) return start_job();
    for (auto& agent : agents_) agent->join();
  }

  void on_parked(const Assign& assign) {
    if (!places_.insert(assign.node_index).second || assign.num_nodes != nodes_)
      fail("a place was given twice, or the nodes do not agree on their number");
    world_size_ = assign.world_size;
  }

  void on_started() {
    if (++num_started_ < nodes_) return;
    if (world_size_ != nodes_ * kProcsPerNode) fail("the world has another size");
    num_started_ = 0;
    places_.clear();
    if (failed_ == TimePoint{}) {
      started_ = SteadyClock().now();
      first_ = traffic - before_;
      num_threads_ = count_threads();
      return later(std::chrono::seconds(1),
                   [this] { setting_.is_invited ? follow() : fail_worker(); });
    }
    restarted_ = SteadyClock().now();
    restart_ = traffic - before_;
    later(std::chrono::seconds(1), [this] {
      const Connections now = look_at_connections(port_);
      carried_ = sum(now, nodes_connections(now), true);
      num_connections_ = static_cast<int>(nodes_connections(now).size());
      following_restart_ = following(now) - following_before_;
      for (const auto& follower : followers_) {
        if (follower->job.generation() != 2 || follower->job.nodes_size() != nodes_ ||
            follower->job.state() != v1::JOB_STATE_RUNNING)
          fail("a follower does not see the job as it is");
      }
      died_ = SteadyClock().now();
      agents_.back()->die();
    });
  }

  void on_stopped() {
    if (failed_ == TimePoint{}) fail("workers were stopped before one failed");
    if (died_ == TimePoint{}) return;  // the restart
    if (lost_ == TimePoint{}) fail("workers were stopped before a node was lost");
    if (++num_stopped_ < nodes_ - 1) return;
    stopped_ = SteadyClock().now();
    loop_.stop();
  }

  Traffic traffic;

 private:
  void listen() {
    config_.listen = "127.0.0.1:0";
    config_.tls = issue(setting_.folder, "coordinator");
    config_.max_connections = config_.max_connections_each = nodes_ + kFollowers + 8;
    auto server = GrpcServer::start(config_, "", {host_.get(), cluster_.get()});
    if (!server) fail(server.error().message());
    server_ = *std::move(server);
    port_ = server_->tcp_port();
    const std::string target = "127.0.0.1:" + std::to_string(port_);
    for (int i = 0; i < nodes_; ++i) {
      // A certificate speaks for its own node alone.
      auto credentials = client_credentials(issue(setting_.folder, "n" + std::to_string(i)), false);
      if (!credentials) fail(credentials.error().message());
      add_agent(grpc::CreateCustomChannel(target, *credentials, client_channel_arguments()));
    }
  }

  void serve_in_memory() {
    grpc::ServerBuilder builder;
    builder.RegisterService(host_.get());
    builder.RegisterService(cluster_.get());
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    memory_server_ = builder.BuildAndStart();
    if (memory_server_ == nullptr) fail("gRPC does not begin");
    for (int i = 0; i < nodes_; ++i) add_agent(memory_server_->InProcessChannel({}));
  }

  void add_agent(std::shared_ptr<grpc::Channel> channel) {
    const int number = static_cast<int>(agents_.size());
    agents_.push_back(std::make_unique<SimulatedAgent>(*this, loop_, number, std::move(channel)));
  }

  void start_job() {
    JobDescription job = describe_job(make_spec(nodes_));
    job.recruits = setting_.is_invited;
    host_->handle(StartJob{.request_id = "1", .job = std::move(job)});
  }

  AgentConfig follower_config(const std::string& name) {
    AgentConfig config;
    config.node_id = name;
    config.insecure = !setting_.has_sockets;
    if (setting_.has_sockets) config.tls = issue(setting_.folder, name);
    config.coordinator = "127.0.0.1:" + std::to_string(port_);
    return config;
  }

  // Those that were there before the followers came.
  const Connections& nodes_connections(const Connections& now) const {
    return followers_.empty() ? now : own_connections_;
  }

  // Bytes of the followers' connections, both ways.
  std::uint64_t following(const Connections& now) const {
    const Carried carried = sum(now, nodes_connections(now), false);
    return carried.sent + carried.received;
  }

  void follow() {
    own_connections_ = look_at_connections(port_);
    for (int i = 0; i < kFollowers; ++i) {
      followers_.push_back(
          std::make_unique<Follower>(loop_, follower_config("f" + std::to_string(i))));
      followers_.back()->begin();
    }
    later(std::chrono::seconds(3), [this] {
      before_ = traffic;
      steady_before_ = look_at_connections(port_);
      later(kSteady, [this] {
        steady_ = traffic - before_;
        const Connections now = look_at_connections(port_);
        const Carried before = sum(steady_before_, own_connections_, true);
        const Carried after = sum(now, own_connections_, true);
        steady_carried_ = {after.sent - before.sent, after.received - before.received};
        following_steady_ = following(now) - following(steady_before_);
        fail_worker();
      });
    });
  }

  void fail_worker() {
    if (!followers_.empty()) following_before_ = following(look_at_connections(port_));
    failed_ = SteadyClock().now();
    before_ = traffic;
    agents_.front()->fail_worker();
  }

  // What is left to do of what was before is not counted with what comes.
  template <typename Work>
  void later(std::chrono::seconds pause, Work work) {
    timer_.expires_after(pause);
    timer_.async_wait([work](const boost::system::error_code&) { work(); });
  }

  // Agents beat meanwhile, as real ones do.
  void tick() {
    ticks_.expires_after(std::chrono::milliseconds(250));
    ticks_.async_wait([this](const boost::system::error_code&) {
      for (auto& agent : agents_) agent->tick();
      tick();
    });
  }

  const Setting setting_;
  const int nodes_;
  boost::asio::io_context loop_{1};
  boost::asio::steady_timer ticks_{loop_};
  boost::asio::steady_timer timer_{loop_};
  SteadyClock clock_;
  TicketBook tickets_{clock_};
  AgentConfig config_;
  std::unique_ptr<CoordinatorHost> host_;
  FileReaders files_{loop_};
  std::unique_ptr<ClusterService> cluster_;
  int port_ = 0;
  std::unique_ptr<GrpcServer> server_;
  std::unique_ptr<grpc::Server> memory_server_;
  std::vector<std::unique_ptr<SimulatedAgent>> agents_;
  std::set<int> places_;
  int world_size_ = 0;
  int num_greeted_ = 0;
  int num_started_ = 0;
  int num_stopped_ = 0;
  int num_threads_ = 0;
  std::vector<std::unique_ptr<Follower>> followers_;
  Connections own_connections_;  // of the nodes, once somebody follows
  Connections steady_before_;
  Carried carried_;
  Carried steady_carried_;
  std::uint64_t following_before_ = 0;
  std::uint64_t following_steady_ = 0;
  std::uint64_t following_restart_ = 0;
  int num_connections_ = 0;
  Traffic before_;
  Traffic steady_;
  Traffic first_;
  Traffic restart_;
  TimePoint begun_{};
  TimePoint joined_{};
  TimePoint started_{};
  TimePoint failed_{};
  TimePoint restarted_{};
  TimePoint died_{};
  TimePoint lost_{};
  TimePoint stopped_{};
};

SimulatedAgent::SimulatedAgent(Bench& bench,
                               boost::asio::io_context& loop,
                               int number,
                               std::shared_ptr<grpc::Channel> channel)
    : bench_(bench),
      loop_(loop),
      session_(loop,
               std::move(channel),
               {.on_open = [this] { handle(Connected{}); },
                .on_message = [this](v1::CoordMsg& message) { on_message(message); },
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

void SimulatedAgent::fail_worker() {
  supervisor::WorkerExit exit;
  exit.cause = supervisor::ExitCause::kNonZero;
  exit.exit_code = 1;
  handle(WorkerExited{
      .job_uuid = kJob, .generation = state_.jobs[kJob].generation, .step = -1, .exit = exit});
}

// Its stream ends, as the kernel ends the connections of a process that is killed.
void SimulatedAgent::die() {
  is_dead_ = true;
  session_.close([] {});
}

void SimulatedAgent::on_message(v1::CoordMsg& message) {
  if (is_dead_) return;
  bench_.traffic.down += message.ByteSizeLong();
  if (!specs_.complete(message)) fail("a spec that never came");
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
    v1::AgentMsg message = to_proto(send->message);
    bench_.traffic.up += message.ByteSizeLong();
    session_.send(std::move(message));
  } else if (std::holds_alternative<ConsiderJob>(action)) {
    boost::asio::post(loop_, [this] { join(); });
  } else if (const auto* order = std::get_if<ParkWorkers>(&action)) {
    bench_.on_parked(order->assign);
    park(*order);
  } else if (std::holds_alternative<ReleaseWorkers>(action)) {
    bench_.on_started();
  } else if (const auto* stop = std::get_if<StopWorkers>(&action)) {
    bench_.on_stopped();
    boost::asio::post(loop_, [this, gone = *stop] {
      if (!is_dead_) handle(WorkersGone{.job_uuid = gone.job_uuid, .generation = gone.generation});
    });
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
  Setting setting;
  if (argc > 1) setting.nodes = std::atoi(argv[1]);
  setting.is_invited = argc > 2 && std::string(argv[2]) == "invited";
  setting.has_sockets = argc <= 3 || std::string(argv[3]) != "memory";
  const int most = setting.has_sockets ? 4'000 : CoordinatorHost::kMaxSessions;
  if (setting.nodes < 2 || setting.nodes > most)
    fail("give 2 to " + std::to_string(most) + " agents");
  ::setenv("GRPC_VERBOSITY", "NONE", 0);
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  char folder[] = "/tmp/accel-rendezvous-XXXXXX";
  if (::mkdtemp(folder) == nullptr) fail("no folder in /tmp");
  setting.folder = folder;
  const pid_t child = ::fork();
  if (child < 0) fail("no process");
  if (child == 0) Bench(setting).run();
  // The folder goes when the bench has ended, however it did.
  int status = 1;
  (void)::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
