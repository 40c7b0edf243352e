#include "agent/metrics/metrics_server.h"

#include <cerrno>
#include <utility>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

#include "agent/calls/listener.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr int kMetricsBacklog = 64;
// Without descriptors, before it is tried again.
constexpr std::chrono::milliseconds kAcceptRetry{100};

// std::nullopt: nobody is there to be answered.
std::optional<http::status> http_refusal(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return http::status::request_header_fields_too_large;
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  // What the parser says is of the caller's making; all else is of the connection.
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  if (is_http) return http::status::bad_request;
  return std::nullopt;
}

}  // namespace

struct MetricsServer::Core : std::enable_shared_from_this<Core> {
  Core(asio::io_context& context,
       UniqueFd socket,
       Handlers made_handlers,
       std::chrono::milliseconds made_patience)
      : loop(context),
        listener(context, socket.release()),
        pause(context),
        handlers(std::move(made_handlers)),
        patience(made_patience) {}

  void wait();
  void accept();
  void one_is_gone();

  asio::io_context& loop;
  asio::posix::stream_descriptor listener;
  asio::steady_timer pause;
  Handlers handlers;
  const std::chrono::milliseconds patience;
  int num_open = 0;
  bool is_full = false;
  bool is_closed = false;
};

// Kept alive by its own operations; when the last one has ended, it is gone.
class MetricsServer::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Core> core, asio::ip::tcp::socket socket)
      : core_(std::move(core)), stream_(std::move(socket)) {
    ++core_->num_open;
    parser_.header_limit(kMaxRequest);
  }
  ~Connection() { core_->one_is_gone(); }

  void begin() {
    // Of the connection as a whole: never set again.
    stream_.expires_after(core_->patience);
    http::async_read_header(
        stream_,
        buffer_,
        parser_,
        [self = shared_from_this()](const error_code& error, std::size_t) { self->take(error); });
  }

 private:
  void take(const error_code& error) {
    if (error) {
      if (const auto status = http_refusal(error))
        answer(*status, "text/plain", reason_text(*status));
      return;
    }
    const auto& request = parser_.get();
    const http::verb method = request.method();
    if (method != http::verb::get && method != http::verb::head)
      return refuse(http::status::method_not_allowed);
    const auto length = parser_.content_length();
    if (parser_.chunked() || (length && *length > 0)) return refuse(http::status::bad_request);
    const std::string_view target(request.target().data(), request.target().size());
    const std::string_view path = target.substr(0, target.find('?'));
    if (path == "/healthz") return answer_health();
    if (path != "/metrics") return refuse(http::status::not_found);
    if (core_->is_closed) return;
    core_->handlers.collect([self = shared_from_this()](std::string page) {
      self->answer(http::status::ok, "text/plain; version=0.0.4; charset=utf-8", std::move(page));
    });
  }

  void answer_health() {
    const bool ends = core_->is_closed || core_->handlers.is_ending();
    if (ends) return answer(http::status::service_unavailable, "text/plain", "the agent ends\n");
    answer(http::status::ok, "text/plain", "ok\n");
  }

  void refuse(http::status status) { answer(status, "text/plain", reason_text(status)); }

  static std::string reason_text(http::status status) {
    return std::string(http::obsolete_reason(status)) + "\n";
  }

  void answer(http::status status, const char* type, std::string body) {
    response_.result(status);
    response_.version(11);
    response_.set(http::field::content_type, type);
    response_.set(http::field::cache_control, "no-store");
    if (status == http::status::method_not_allowed) response_.set(http::field::allow, "GET, HEAD");
    response_.keep_alive(false);
    response_.body() = std::move(body);
    response_.prepare_payload();
    if (parser_.get().method() == http::verb::head) response_.body().clear();
    serializer_.emplace(response_);
    http::async_write(
        stream_, *serializer_, [self = shared_from_this()](const error_code& error, std::size_t) {
          if (error) return;
          error_code ignored;
          self->stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
          self->drain();
        });
  }

  // What is still unread when a socket is closed makes the kernel reset the connection, and the answer may be lost with it.
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kMaxRequest / 2),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              if (!error) self->drain();
                            });
  }

  std::shared_ptr<Core> core_;
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxRequest};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;
};

void MetricsServer::Core::wait() {
  listener.async_wait(asio::posix::descriptor_base::wait_read,
                      [core = shared_from_this()](const error_code& error) {
                        if (!error && !core->is_closed) core->accept();
                      });
}

void MetricsServer::Core::accept() {
  if (num_open >= kMaxConnections) {
    is_full = true;
    return;
  }
  UniqueFd accepted(
      ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted && errno != EAGAIN && errno != ECONNABORTED) {
    // It stays readable: without a pause this would be a loop without end.
    pause.expires_after(kAcceptRetry);
    pause.async_wait([core = shared_from_this()](const error_code& error) {
      if (!error && !core->is_closed) core->wait();
    });
    return;
  }
  if (accepted) {
    sockaddr_storage own{};
    socklen_t size = sizeof own;
    ::getsockname(accepted.get(), reinterpret_cast<sockaddr*>(&own), &size);
    asio::ip::tcp::socket socket(loop);
    error_code failure;
    socket.assign(own.ss_family == AF_INET ? asio::ip::tcp::v4() : asio::ip::tcp::v6(),
                  accepted.get(),
                  failure);
    if (!failure) {
      (void)accepted.release();  // the socket's now
      std::make_shared<Connection>(shared_from_this(), std::move(socket))->begin();
    }
  }
  wait();
}

void MetricsServer::Core::one_is_gone() {
  --num_open;
  if (!std::exchange(is_full, false) || is_closed) return;
  wait();
}

MetricsServer::MetricsServer(std::shared_ptr<Core> core) : core_(std::move(core)) {
  core_->wait();
}

MetricsServer::~MetricsServer() {
  core_->is_closed = true;
  core_->handlers = {};
  core_->pause.cancel();
  error_code ignored;
  core_->listener.close(ignored);
}

Result<std::unique_ptr<MetricsServer>> MetricsServer::listen(
    asio::io_context& loop,
    const supervisor::TcpEndpoint& endpoint,
    Handlers handlers,
    std::chrono::milliseconds patience) {
  auto socket = listen_at(endpoint, kMetricsBacklog);
  if (!socket) return std::move(socket).error();
  auto core = std::make_shared<Core>(loop, *std::move(socket), std::move(handlers), patience);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(core)));
}

int MetricsServer::port() const {
  return port_of(core_->listener.native_handle());
}

}  // namespace accel::agent
