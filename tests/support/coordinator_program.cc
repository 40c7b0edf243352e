// A process that hosts a coordinator and nothing else, for jobs of accel-launch: to be killed, stopped and started again.
//
//   coordinator_program TOKEN_FILE ADDR:PORT journal FOLDER
//   coordinator_program TOKEN_FILE ADDR:PORT etcd CLUSTER ENDPOINT...
//
// Without TLS, on loopback. SIGTERM: gives up the leadership and ends. What it does is told on stdout, a line each.

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/signal_set.hpp>
#include <unistd.h>

#include "agent/calls/grpc_server.h"
#include "agent/coordinator/journal/journal.h"
#include "agent/etcd/etcd_election.h"
#include "agent/rendezvous/coordinator_host.h"
#include "agent/rendezvous/token_proof.h"

namespace accel::agent {
namespace {

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

int fail(const Error& error) {
  say(error.render("coordinator_program"));
  return error_info(error.code()).exit_status;
}

class Program {
 public:
  explicit Program(const std::vector<std::string>& arguments) : arguments_(arguments) {}

  Result<void> start() {
    auto token = read_token(arguments_.at(0));
    if (!token) return std::move(token).error();
    config_.listen = arguments_.at(1);
    config_.insecure = true;
    CoordinatorHostOptions options;
    options.token_key = token_key(*token);
    options.takes_jobs_from_joins = true;
    options.authenticate = [this](const CallIdentity& call) {
      return authenticate(call, tickets_, config_, ::geteuid());
    };
    options.report = [](const Report& report) { say(report.node_id + " " + report.text); };
    options.audit = [](const std::string& line) { say("audit: " + line); };
    options.deposed = [this](const std::string& why) {
      say("deposed: " + why);
      if (election_) election_->depose(why);
    };
    host_ = std::make_unique<CoordinatorHost>(loop_, std::move(options));
    if (auto led = arguments_.at(2) == "journal" ? lead_by_journal() : take_part(); !led)
      return led;
    auto server = GrpcServer::start(config_, "", {host_.get()});
    if (!server) return std::move(server).error();
    server_ = *std::move(server);
    say("serves");
    return {};
  }

  int run() {
    boost::asio::signal_set signals(loop_, SIGTERM);
    signals.async_wait([this](const boost::system::error_code&, int) {
      if (!election_) return loop_.stop();
      election_->end([this] { loop_.stop(); });
    });
    loop_.run();
    server_->shutdown();
    return 0;
  }

 private:
  Result<void> lead_by_journal() {
    auto journal = Journal::open(arguments_.at(3) + "/journal");
    if (!journal) return std::move(journal).error();
    auto reign = take_over(*std::move(journal), std::nullopt, {}, SteadyClock().now());
    if (!reign) return std::move(reign).error();
    lead(*std::move(reign));
    return {};
  }

  Result<void> take_part() {
    host_->follow({});
    EtcdSettings etcd;
    etcd.endpoints.assign(arguments_.begin() + 4, arguments_.end());
    auto election = EtcdElection::start(
        loop_,
        etcd,
        {.cluster = arguments_.at(3),
         .own_address = config_.listen,
         .coordinator = {},
         .election = {}},
        {.on_lead = [this](Reign reign) { lead(std::move(reign)); },
         .on_follow =
             [this](const Leader& leader) {
               host_->follow(leader);
               say("follows " + (leader.address.empty() ? "nobody" : leader.address));
             },
         .on_line = say});
    if (!election) return std::move(election).error();
    election_ = *std::move(election);
    return {};
  }

  void lead(Reign reign) {
    const std::uint64_t epoch = reign.beginning.state.epoch;
    const auto num_jobs = reign.beginning.state.jobs.size();
    host_->lead(std::move(reign));
    say("epoch " + std::to_string(epoch) + " with " + std::to_string(num_jobs) + " jobs");
  }

  const std::vector<std::string>& arguments_;
  AgentConfig config_;
  SteadyClock clock_;
  TicketBook tickets_{clock_};
  boost::asio::io_context loop_{1};
  std::unique_ptr<CoordinatorHost> host_;
  std::unique_ptr<EtcdElection> election_;
  std::unique_ptr<GrpcServer> server_;
};

}  // namespace
}  // namespace accel::agent

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() < 4) return 2;
  accel::agent::Program program(arguments);
  if (auto started = program.start(); !started) return accel::agent::fail(started.error());
  return program.run();
}
