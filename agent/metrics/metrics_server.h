// MetricsServer: answers GET /metrics and GET /healthz over plain HTTP.
//
//   accepted --a whole header--> asked --the page is there--> answered --the caller is gone--> closed
//       '------------- kPatience after it was accepted, whatever happens --------------------^
//
//   request                                            answer
//   GET or HEAD /metrics                               200, the text format of Prometheus
//   GET or HEAD /healthz                               200 "ok", or 503 while the agent ends
//   another path                                       404
//   another method                                     405
//   more than kMaxRequest bytes of header              431
//   no HTTP, a body                                    400
//
// One request a connection. At most kMaxConnections are open; others wait in the kernel's queue. There is no TLS and nobody
// is asked who it is: complete_agent_config() allows addresses beyond loopback only where that was said.
//
// Threads:  everything on the loop; nothing blocks it.
// Source:   docs/reference/metrics.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::agent {

class MetricsServer {
 public:
  static constexpr std::size_t kMaxRequest = 8 * 1024;
  static constexpr int kMaxConnections = 8;
  static constexpr std::chrono::seconds kPatience{5};

  struct Handlers {
    // Gives the page to `done`, now or within a second.
    std::function<void(std::function<void(std::string page)> done)> collect;
    std::function<bool()> is_ending;
  };
  // Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<MetricsServer>> listen(
      boost::asio::io_context& loop,
      const supervisor::TcpEndpoint& endpoint,
      Handlers handlers,
      std::chrono::milliseconds patience = kPatience);
  // Accepts nothing more; calls no handler any more.
  ~MetricsServer();

  [[nodiscard]] int port() const;

 private:
  struct Core;
  class Connection;
  explicit MetricsServer(std::shared_ptr<Core> core);

  std::shared_ptr<Core> core_;  // also of the connections that are still open
};

}  // namespace accel::agent
