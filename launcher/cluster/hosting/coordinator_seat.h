// CoordinatorSeat: a coordinator inside a launcher, with the server by which the nodes reach it.
//
// It lives and dies with its launcher; at the job's end it stays until the nodes have heard of it.
//
// Threads:  everything on the loop.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include "agent/access/refusal_log.h"
#include "agent/access/ticket_book.h"
#include "agent/calls/grpc_server.h"
#include "agent/rendezvous/coordinator_host.h"

namespace accel::cluster {

struct SeatOptions {
  std::string listen;  // "ADDR:PORT", numeric
  agent::TlsFiles tls;
  bool insecure = false;
  std::string token_key;
  bool takes_jobs_from_joins = true;
  std::function<void(const agent::Report&)> on_report;
  std::function<void(const std::string&)> on_line;  // for people
};

class CoordinatorSeat {
 public:
  // Errors  kFileIo: the address is taken; kTls.
  [[nodiscard]] static Result<std::unique_ptr<CoordinatorSeat>> take(boost::asio::io_context& loop,
                                                                     SeatOptions options);
  ~CoordinatorSeat();

  [[nodiscard]] agent::CoordinatorHost& host() { return *host_; }
  [[nodiscard]] int port() const { return server_->tcp_port(); }

  // Waits some seconds for the nodes to go, then ends; `done` on the loop.
  void close(std::function<void()> done);
  // Ends: the nodes see that it does, and that their job goes on without it.
  void end(std::function<void()> done);

 private:
  CoordinatorSeat(boost::asio::io_context& loop, SeatOptions options);
  void say(const std::string& line) { options_.on_line("coordinator: " + line); }
  void wait_for_farewells();

  boost::asio::io_context& loop_;
  SeatOptions options_;
  agent::AgentConfig config_;
  SteadyClock clock_;
  agent::TicketBook tickets_{clock_};
  agent::RefusalLog refusals_{clock_};
  boost::asio::steady_timer farewell_;
  TimePoint farewell_end_{};
  std::unique_ptr<agent::CoordinatorHost> host_;
  std::unique_ptr<agent::GrpcServer> server_;
  std::function<void()> on_closed_;
  std::thread closer_;
};

// "node gpu-02: lost", or the text alone when it is about no node.
[[nodiscard]] std::string describe_report(const agent::Report& report);

}  // namespace accel::cluster
