#include "launcher/cluster/hosting/coordinator_seat.h"

#include <boost/asio/post.hpp>
#include <unistd.h>

#include "agent/tls/certificate_file.h"

namespace accel::cluster {
namespace {

namespace asio = boost::asio;

// How long the coordinator waits for the nodes to hear of the end.
constexpr std::chrono::seconds kFarewell{5};

}  // namespace

CoordinatorSeat::CoordinatorSeat(asio::io_context& loop, SeatOptions options)
    : loop_(loop), options_(std::move(options)), farewell_(loop) {
  config_.listen = options_.listen;
  config_.insecure = options_.insecure;
  config_.tls = options_.tls;
  agent::CoordinatorHostOptions host;
  host.token_key = options_.token_key;
  host.place = agent::Place::kJobSession;
  host.takes_jobs_from_joins = options_.takes_jobs_from_joins;
  host.authenticate = [this](const agent::CallIdentity& call) {
    return agent::authenticate(call, tickets_, config_, ::geteuid());
  };
  host.report = [this](const agent::Report& report) { options_.on_report(report); };
  host.audit = [this](const std::string& line) { say(line); };
  host_ = std::make_unique<agent::CoordinatorHost>(loop_, std::move(host));
}

Result<std::unique_ptr<CoordinatorSeat>> CoordinatorSeat::take(asio::io_context& loop,
                                                               SeatOptions options) {
  std::unique_ptr<CoordinatorSeat> seat(new CoordinatorSeat(loop, std::move(options)));
  if (!seat->config_.insecure) {
    auto cluster = agent::cluster_of_certificate(seat->config_.tls.certificate);
    if (!cluster) return std::move(cluster).error();
    seat->config_.cluster = *std::move(cluster);
  }
  auto server = agent::GrpcServer::start(
      seat->config_, "", {seat->host_.get()}, [&loop, raw = seat.get()](const std::string& line) {
        asio::post(loop, [raw, line] {
          if (const auto admitted = raw->refusals_.admit(line)) raw->say(*admitted);
        });
      });
  if (!server) return std::move(server).error();
  seat->server_ = *std::move(server);
  return seat;
}

CoordinatorSeat::~CoordinatorSeat() {
  if (closer_.joinable()) closer_.join();
}

void CoordinatorSeat::close(std::function<void()> done) {
  on_closed_ = std::move(done);
  farewell_end_ = clock_.now() + kFarewell;
  wait_for_farewells();
}

void CoordinatorSeat::wait_for_farewells() {
  if (host_->num_sessions() > 0 && clock_.now() < farewell_end_) {
    farewell_.expires_after(std::chrono::milliseconds(20));
    farewell_.async_wait([this](const boost::system::error_code& error) {
      if (!error) wait_for_farewells();
    });
    return;
  }
  end(std::move(on_closed_));
}

void CoordinatorSeat::end(std::function<void()> done) {
  host_->close();
  closer_ = std::thread([this, done = std::move(done)] {
    server_->shutdown();
    asio::post(loop_, done);
  });
}

std::string describe_report(const agent::Report& report) {
  if (report.text.empty()) return "";
  return report.node_id.empty() ? report.text : "node " + report.node_id + ": " + report.text;
}

}  // namespace accel::cluster
