// MetricsServer: answers GET /metrics and GET /healthz over plain HTTP.
//
//   request                                            answer
//   GET or HEAD /metrics                               200, the text format of Prometheus
//   GET or HEAD /healthz                               200 "ok", or 503 while what is measured ends
//   another path                                       404
//   all else                                           as http_server.h says
//
// There is no TLS and nobody is asked who it is: whoever configures it allows addresses beyond loopback only where that was said
// (check_metrics_address()).
//
// Threads:  everything on the loop; nothing blocks it.
// Source:   docs/reference/metrics.md.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/http/http_server.h"

namespace accel::supervisor {

class MetricsServer {
 public:
  static constexpr std::size_t kMaxRequest = HttpServer::kMaxRequest;
  static constexpr int kMaxConnections = 8;
  static constexpr std::chrono::seconds kPatience = HttpServer::kPatience;

  struct Handlers {
    // Gives the page to `done`, now or within a second.
    std::function<void(std::function<void(std::string page)> done)> collect;
    std::function<bool()> is_ending;
  };
  // Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> listen(
      boost::asio::io_context& loop,
      const TcpEndpoint& endpoint,
      Handlers handlers,
      std::chrono::milliseconds patience = kPatience);
  // Accepts nothing more; calls no handler any more.
  ~MetricsServer() = default;

  [[nodiscard]] int port() const { return server_->port(); }

 private:
  explicit MetricsServer(std::unique_ptr<HttpServer> server) : server_(std::move(server)) {}

  std::unique_ptr<HttpServer> server_;
};

}  // namespace accel::supervisor
