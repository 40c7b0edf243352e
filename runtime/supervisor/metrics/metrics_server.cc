#include "runtime/supervisor/metrics/metrics_server.h"

#include <utility>

namespace accel::supervisor {

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(boost::asio::io_context& loop,
                                                             const TcpEndpoint& endpoint,
                                                             Handlers handlers,
                                                             std::chrono::milliseconds patience) {
  auto server = HttpServer::listen(
      loop,
      endpoint,
      [handlers = std::move(handlers)](const HttpRequest& request,
                                       const std::shared_ptr<HttpReply>& reply) {
        if (request.path == "/healthz") {
          const bool ends = handlers.is_ending();
          return reply->answer(ends ? HttpAnswer{.status = 503, .body = "it ends\n"}
                                    : HttpAnswer{.body = "ok\n"});
        }
        if (request.path != "/metrics") return reply->answer(http_refusal(404));
        handlers.collect([reply](std::string page) {
          reply->answer(
              {.type = "text/plain; version=0.0.4; charset=utf-8", .body = std::move(page)});
        });
      },
      {.most_connections = kMaxConnections, .patience = patience});
  if (!server) return std::move(server).error();
  return std::unique_ptr<MetricsServer>(new MetricsServer(*std::move(server)));
}

}  // namespace accel::supervisor
