// HttpServer: answers GET and HEAD, and POST where that is asked for, over plain HTTP, with a page or with a stream of events.
//
//   accepted --a whole header--> asked --answer()--> answered --the caller is gone, or `patience` without a part that it takes--> closed
//       |                         |'----stream()--> streaming --the caller is gone, or reads too slowly--> closed
//       |                         '-- the caller is gone, with its answer still to come ----------------------^
//       '------------- `patience` after it was accepted ------------------------------------------------------^
//
// An answer may take its time, which is the handler's to bound. A caller that closes its side has gone: nobody is answered, and
// its place is another one's.
//
//   request                                            answer
//   GET, HEAD; with `takes_post` POST                  the handler's
//   another method                                     405
//   more than kMaxRequest bytes of header              431
//   no HTTP, a body                                    400
//
// One request a connection. At most `most_connections` are open; others wait in the kernel's queue. There is no TLS: who may
// ask is the handler's to decide, and where to listen that of whoever configures it.
//
// A stream holds one event that is being written and the newest one after it: a caller that reads slowly misses events in
// between, and one that has not taken an event within `patience` is dropped.
//
// Threads:  everything on the loop; nothing blocks it.
// Source:   docs/reference/metrics.md, docs/guides/dashboard.md.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>

#include <accel/result.h>

#include "runtime/supervisor/kernel/tcp_endpoint.h"

namespace accel::supervisor {

// What was asked. The views live as long as the call of the handler.
struct HttpRequest {
  std::string_view path;           // "/metrics"
  std::string_view query;          // "rank=1&stream=out"; empty: none
  std::string_view host;           // empty: none was given
  std::string_view origin;         // of a page's script; empty: none was given
  std::string_view authorization;  // "Bearer ..."; empty: none was given
  bool is_head = false;            // the headers alone are wanted
  bool is_post = false;            // something is to be done
  std::string from;                // the caller's address: "127.0.0.1:41233"
};

struct HttpAnswer {
  unsigned status = 200;
  std::string_view type = "text/plain";  // lives for ever
  std::string body;
  std::vector<std::pair<std::string_view, std::string>> headers =
      {};  // beside Cache-Control: no-store
};

// Text of the status with a newline: "Not Found\n".
[[nodiscard]] HttpAnswer http_refusal(unsigned status);

// Where an answer goes. Answer or stream, once; a handler may keep it and do so later. To a caller that has gone nothing is sent.
class HttpReply {
 public:
  virtual ~HttpReply() = default;

  virtual void answer(HttpAnswer answer) = 0;

  // Begins a text/event-stream. `on_over`, called once: the caller has gone, or was dropped because it did not read.
  virtual void stream(std::function<void(bool was_dropped)> on_over) = 0;
  // Requires: stream(). Nothing when the stream is over. `data` has no newline.
  virtual void send(std::shared_ptr<const std::string> data) = 0;
  // What was sent is written, then the stream ends.
  virtual void end() = 0;
};

class HttpServer {
 public:
  static constexpr std::size_t kMaxRequest = 8 * 1024;
  static constexpr std::chrono::seconds kPatience{5};

  using Handler = std::function<void(const HttpRequest&, const std::shared_ptr<HttpReply>&)>;
  struct Options {
    int most_connections = 8;
    std::chrono::milliseconds patience = kPatience;
    bool takes_post = false;
  };
  // Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<HttpServer>> listen(boost::asio::io_context& loop,
                                                                  const TcpEndpoint& endpoint,
                                                                  Handler handler,
                                                                  Options options);
  // Accepts nothing more; calls no handler any more. Connections that are open end by themselves; streams end now.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  [[nodiscard]] int port() const;

 private:
  struct Core;
  class Connection;
  explicit HttpServer(std::shared_ptr<Core> core);

  std::shared_ptr<Core> core_;  // also of the connections that are still open
};

}  // namespace accel::supervisor
