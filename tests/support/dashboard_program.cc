// dashboard_program NODES: serves a dashboard of so many nodes and one job of two ranks, as an agent's would be.
//
// Prints the address. Each line on stdin is the state of the last node from then on; its end ends the program.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include "runtime/supervisor/dashboard/dashboard_server.h"

namespace {

using namespace accel::supervisor;

DashboardState state_of(int num_nodes) {
  DashboardState state = {.program = "accel-agent", .version = "test", .node = "node-0000"};
  for (int i = 0; i < num_nodes; ++i) {
    char name[32];
    std::snprintf(name, sizeof name, "node-%04d", i);
    state.nodes.push_back({.id = name, .state = "live", .endpoint = "10.0.0.1:29400", .slots = 8});
  }
  DashboardJob job = {.id = "<img src=x onerror=alert(1)>", .user = "someone", .state = "running"};
  for (int rank = 0; rank < 2; ++rank)
    job.ranks.push_back({.rank = rank, .local_rank = rank, .node = "node-0000", .pid = 1});
  state.jobs.push_back(job);
  return state;
}

}  // namespace

int main(int count, char** arguments) {
  boost::asio::io_context loop;
  DashboardState state = state_of(count > 1 ? std::atoi(arguments[1]) : 1);
  auto server = DashboardServer::listen(
      loop,
      {boost::asio::ip::address_v4::loopback(), 0},
      {.viewers = std::string(48, 'a'), .operators = std::string(48, 'o')},
      {.collect =
           [&state](const auto& done) {
             state.wall_seconds =
                 std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch())
                     .count();
             done(state);
           },
       .read_log = [](const LogQuestion&, const auto& done) { done({.notice = "none"}); }});
  if (!server) return EXIT_FAILURE;
  std::cout << (*server)->address() << std::endl;
  std::thread reader([&] {
    for (std::string line; std::getline(std::cin, line);)
      boost::asio::post(loop, [&state, line] { state.nodes.back().state = line; });
    boost::asio::post(loop, [&loop] { loop.stop(); });
  });
  loop.run();
  reader.join();
  return EXIT_SUCCESS;
}
