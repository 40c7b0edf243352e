// Hosts a store for a peer test: prints its port, serves until standard input ends.

#include <cstdio>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <unistd.h>

#include "runtime/supervisor/store/store_server.h"

int main() {
  using namespace accel::supervisor;
  boost::asio::io_context context;
  StoreOptions options;
  options.policy.port = 0;
  options.on_notice = [](const accel::Error& error) {
    std::fprintf(stderr, "%s\n", error.render("store_host").c_str());
  };
  auto server = StoreServer::listen(context, std::move(options));
  if (!server) {
    std::fprintf(stderr, "%s\n", server.error().render("store_host").c_str());
    return server.error().code() == accel::ErrorCode::kPortInUse ? 98 : 1;
  }
  std::printf("%u\n", (*server)->port());
  std::fflush(stdout);

  boost::asio::posix::stream_descriptor input(context, ::dup(STDIN_FILENO));
  input.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [&](const boost::system::error_code&) { context.stop(); });
  context.run();
  return 0;
}
