#include "runtime/supervisor/http/http_server.h"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>

#include <boost/asio/error.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/error.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <sys/socket.h>

#include "runtime/supervisor/http/listening_socket.h"
#include "runtime/text/endpoint_text.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

constexpr int kHttpBacklog = 64;
// Without descriptors, before it is tried again.
constexpr std::chrono::milliseconds kHttpAcceptRetry{100};
// What the kernel holds of a stream beyond the event under way: so a caller that never reads is seen soon.
constexpr int kStreamBuffer = 64 * 1024;

// std::nullopt: nobody is there to be answered.
std::optional<http::status> status_of_fault(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow)
    return http::status::request_header_fields_too_large;
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return std::nullopt;
  // What the parser says is of the caller's making; all else is of the connection.
  const bool is_http = error.category() == make_error_code(http::error::bad_method).category();
  if (is_http) return http::status::bad_request;
  return std::nullopt;
}

// The caller took nothing for too long: we say so, or the kernel does, whose patience with it began earlier (listen_at()).
bool is_slowness(const error_code& error) {
  return error == beast::error::timeout || error == asio::error::timed_out;
}

std::string_view view_of(beast::string_view text) {
  return {text.data(), text.size()};
}

}  // namespace

HttpAnswer http_refusal(unsigned status) {
  const auto reason = http::obsolete_reason(http::int_to_status(status));
  return {.status = status, .body = std::string(view_of(reason)) + "\n"};
}

struct HttpServer::Core : std::enable_shared_from_this<Core> {
  Core(asio::io_context& context, UniqueFd socket, Handler made_handler, Options made_options)
      : loop(context),
        listener(context, socket.release()),
        pause(context),
        handler(std::move(made_handler)),
        options(made_options) {}

  void wait();
  void accept();
  void one_is_gone();

  asio::io_context& loop;
  asio::posix::stream_descriptor listener;
  asio::steady_timer pause;
  Handler handler;
  const Options options;
  std::set<Connection*> streams;  // those that are open
  std::set<Connection*> waiting;  // for their answers
  int num_open = 0;
  bool is_full = false;
  bool is_closed = false;
};

// Kept alive by its own operations; when the last one has ended, it is gone.
class HttpServer::Connection final : public HttpReply,
                                     public std::enable_shared_from_this<Connection> {
 public:
  Connection(std::shared_ptr<Core> core, asio::ip::tcp::socket socket)
      : core_(std::move(core)), stream_(std::move(socket)) {
    ++core_->num_open;
    parser_.header_limit(kMaxRequest);
  }
  ~Connection() override { give_place_back(); }

  void begin() {
    // Of the connection as a whole: set again for a stream alone.
    stream_.expires_after(core_->options.patience);
    http::async_read_header(
        stream_,
        buffer_,
        parser_,
        [self = shared_from_this()](const error_code& error, std::size_t) { self->take(error); });
  }

  void answer(HttpAnswer answer) override {
    if (std::exchange(is_answered_, true)) return;  // nobody is there
    core_->waiting.erase(this);
    stream_.expires_after(
        core_->options.patience);  // of the write: who waited has waited without a limit
    response_.result(http::int_to_status(answer.status));
    response_.version(11);
    response_.set(http::field::content_type,
                  beast::string_view(answer.type.data(), answer.type.size()));
    response_.set(http::field::cache_control, "no-store");
    for (const auto& [name, value] : answer.headers)
      response_.set(beast::string_view(name.data(), name.size()), value);
    if (answer.status == 405)
      response_.set(http::field::allow,
                    core_->options.takes_post ? "GET, HEAD, POST" : "GET, HEAD");
    response_.keep_alive(false);
    response_.body() = std::move(answer.body);
    response_.prepare_payload();
    if (parser_.get().method() == http::verb::head) response_.body().clear();
    serializer_.emplace(response_);
    write_answer();
  }

  void stream(std::function<void(bool)> on_over) override {
    if (std::exchange(is_answered_, true)) return on_over(false);
    core_->waiting.erase(this);
    on_over_ = std::move(on_over);
    core_->streams.insert(this);
    error_code ignored;
    stream_.socket().set_option(asio::socket_base::send_buffer_size(kStreamBuffer), ignored);
    stream_.expires_never();
    if (!is_reading_) watch_caller();
    write(
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n");
  }

  void send(std::shared_ptr<const std::string> data) override {
    if (!on_over_ || is_ending_) return;
    next_ = std::move(data);
    if (!is_writing_) write_next();
  }

  void end() override {
    is_ending_ = true;
    if (!is_writing_) close_stream(false);
  }

  // The server goes.
  void cut() { close_stream(false); }
  // The caller has gone, or the server goes, before there was an answer.
  void leave() {
    is_answered_ = true;
    core_->waiting.erase(this);
    stream_.close();
    give_place_back();
  }

 private:
  void take(const error_code& error) {
    if (error) {
      if (const auto status = status_of_fault(error))
        answer(http_refusal(static_cast<unsigned>(*status)));
      return;
    }
    const auto& request = parser_.get();
    const http::verb method = request.method();
    const bool is_post = method == http::verb::post && core_->options.takes_post;
    if (method != http::verb::get && method != http::verb::head && !is_post)
      return answer(http_refusal(405));
    const auto length = parser_.content_length();
    if (parser_.chunked() || (length && *length > 0)) return answer(http_refusal(400));
    const std::string_view target = view_of(request.target());
    const std::size_t end = std::min(target.find('?'), target.size());
    const HttpRequest asked = {.path = target.substr(0, end),
                               .query = target.substr(std::min(end + 1, target.size())),
                               .host = view_of(request[http::field::host]),
                               .origin = view_of(request[http::field::origin]),
                               .authorization = view_of(request[http::field::authorization]),
                               .is_head = method == http::verb::head,
                               .is_post = is_post,
                               .from = caller()};
    if (core_->is_closed) return;
    core_->handler(asked, shared_from_this());
    if (is_answered_ || core_->is_closed) return;
    core_->waiting.insert(this);
    stream_.expires_never();
    watch_caller();
  }

  // Once: whoever still holds this keeps nobody from connecting.
  void give_place_back() {
    if (std::exchange(has_place_, false)) core_->one_is_gone();
  }

  [[nodiscard]] std::string caller() const {
    error_code is_gone;
    const auto remote = stream_.socket().remote_endpoint(is_gone);
    return is_gone ? "" : endpoint_text(remote.address().to_string(), remote.port());
  }

  // A part, as much as the caller takes now; the next one has its own time.
  void write_answer() {
    http::async_write_some(
        stream_, *serializer_, [self = shared_from_this()](const error_code& error, std::size_t) {
          if (error) return self->stream_.close();
          if (self->serializer_->is_done()) return self->finish_answer();
          self->stream_.expires_after(self->core_->options.patience);
          self->write_answer();
        });
  }

  void finish_answer() {
    error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    is_sent_ = true;
    if (is_reading_) return stream_.cancel();  // that read has no limit; its end begins the drain
    begin_drain();
  }

  void begin_drain() {
    stream_.expires_after(core_->options.patience);
    drain();
  }

  // What is still unread when a socket is closed makes the kernel reset the connection, and the answer may be lost with it.
  void drain() {
    buffer_.clear();
    stream_.async_read_some(buffer_.prepare(kMaxRequest / 2),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              if (!error) self->drain();
                            });
  }

  // Nothing more is asked, and bytes that come are of no use; the caller's end is. One read at a time.
  void watch_caller() {
    buffer_.clear();
    is_reading_ = true;
    stream_.async_read_some(buffer_.prepare(kMaxRequest / 2),
                            [self = shared_from_this()](const error_code& error, std::size_t) {
                              self->is_reading_ = false;
                              self->hear_caller(error);
                            });
  }

  void hear_caller(const error_code& error) {
    if (is_sent_) return begin_drain();
    const bool is_streaming = static_cast<bool>(on_over_);
    if (is_answered_ && !is_streaming) return;  // the write under way drains when it is done
    if (!error) return watch_caller();
    if (!is_streaming) return leave();
    // Closed here: a write that took too long says so itself.
    if (error != asio::error::operation_aborted) close_stream(is_slowness(error));
  }

  void write_next() {
    write("data: " + *next_ + "\n\n");
    next_.reset();
  }

  void write(std::string text) {
    is_writing_ = true;
    written_ = std::move(text);
    stream_.expires_after(core_->options.patience);  // of this write: the read has none
    asio::async_write(
        stream_,
        asio::buffer(written_),
        [self = shared_from_this()](const error_code& error, std::size_t) { self->go_on(error); });
  }

  void go_on(const error_code& error) {
    is_writing_ = false;
    if (error) return close_stream(is_slowness(error));
    if (next_) return write_next();
    if (is_ending_) close_stream(false);
  }

  void close_stream(bool was_dropped) {
    const auto on_over = std::exchange(on_over_, nullptr);
    if (!on_over) return;
    core_->streams.erase(this);
    error_code ignored;
    stream_.socket().shutdown(asio::ip::tcp::socket::shutdown_both, ignored);
    stream_.cancel();
    on_over(was_dropped);
  }

  std::shared_ptr<Core> core_;
  bool has_place_ = true;     // among most_connections
  bool is_answered_ = false;  // or a stream, or nobody is there
  bool is_sent_ = false;      // the whole answer
  bool is_reading_ = false;   // watch_caller()
  beast::tcp_stream stream_;
  beast::flat_buffer buffer_{kMaxRequest};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
  std::optional<http::response_serializer<http::string_body>> serializer_;

  // Of a stream.
  std::function<void(bool)> on_over_;  // empty: it is none, or over
  std::string written_;
  std::shared_ptr<const std::string> next_;
  bool is_writing_ = false;
  bool is_ending_ = false;
};

void HttpServer::Core::wait() {
  listener.async_wait(asio::posix::descriptor_base::wait_read,
                      [core = shared_from_this()](const error_code& error) {
                        if (!error && !core->is_closed) core->accept();
                      });
}

void HttpServer::Core::accept() {
  if (num_open >= options.most_connections) {
    is_full = true;
    return;
  }
  UniqueFd accepted(
      ::accept4(listener.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!accepted && errno != EAGAIN && errno != ECONNABORTED) {
    // It stays readable: without a pause this would be a loop without end.
    pause.expires_after(kHttpAcceptRetry);
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

void HttpServer::Core::one_is_gone() {
  --num_open;
  if (!std::exchange(is_full, false) || is_closed) return;
  wait();
}

HttpServer::HttpServer(std::shared_ptr<Core> core) : core_(std::move(core)) {
  core_->wait();
}

HttpServer::~HttpServer() {
  core_->is_closed = true;
  core_->handler = {};
  core_->pause.cancel();
  error_code ignored;
  core_->listener.close(ignored);
  const auto streams = std::exchange(core_->streams, {});
  for (Connection* stream : streams) stream->cut();
  for (Connection* caller : std::set(core_->waiting)) caller->leave();
}

Result<std::unique_ptr<HttpServer>> HttpServer::listen(asio::io_context& loop,
                                                       const TcpEndpoint& endpoint,
                                                       Handler handler,
                                                       Options options) {
  auto socket = listen_at(endpoint, kHttpBacklog);
  if (!socket) return std::move(socket).error();
  auto core = std::make_shared<Core>(loop, *std::move(socket), std::move(handler), options);
  return std::unique_ptr<HttpServer>(new HttpServer(std::move(core)));
}

int HttpServer::port() const {
  return port_of(core_->listener.native_handle());
}

}  // namespace accel::supervisor
