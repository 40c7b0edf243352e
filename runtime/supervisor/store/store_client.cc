#include "runtime/supervisor/store/store_client.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "runtime/supervisor/store/store_protocol.h"

namespace accel::supervisor {
namespace {

namespace asio = boost::asio;

void append_code(std::string& out, StoreCommand command) {
  append_u8(out, static_cast<std::uint8_t>(command));
}

Error unreachable(std::string what) {
  return Error(ErrorCode::kStoreUnreachable, std::move(what));
}

template <typename T>
std::optional<T> peek_number(std::string_view bytes) {
  if (bytes.size() < sizeof(T)) return std::nullopt;
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  return value;
}

}  // namespace

std::string encode(const StoreExchange& exchange) {
  std::string out;
  for (const auto& swap : exchange.swaps) {
    append_code(out, StoreCommand::kCompareSet);
    for (const std::string* text : {&swap.key, &swap.expected, &swap.desired})
      append_blob(out, *text);
  }
  if (!exchange.sets.empty()) {
    append_code(out, StoreCommand::kMultiSet);
    append_u64(out, exchange.sets.size());
    for (const auto& [key, value] : exchange.sets) {
      append_blob(out, key);
      append_blob(out, value);
    }
  }
  if (exchange.counter) {
    append_code(out, StoreCommand::kAdd);
    append_blob(out, *exchange.counter);
    append_i64(out, 1);
  }
  if (!exchange.reads.empty()) {
    append_code(out, StoreCommand::kMultiGet);
    append_u64(out, exchange.reads.size());
    for (const std::string& key : exchange.reads) append_blob(out, key);
  }
  return out;
}

// ---- the answer ----

StoreAnswerParser::StoreAnswerParser(const StoreExchange& exchange)
    : num_swaps_(exchange.swaps.size()),
      has_counter_(exchange.counter.has_value()),
      num_values_(exchange.reads.size()) {}

Result<bool> StoreAnswerParser::take_blob(std::vector<std::string>& out) {
  const std::string_view rest = std::string_view(buffer_).substr(start_);
  const auto length = peek_number<std::uint64_t>(rest);
  if (!length) return false;
  if (*length > kMaxValueBytes) {
    return Error(ErrorCode::kProtocol,
                 "the store sends a value of " + std::to_string(*length) + " bytes, at most " +
                     std::to_string(kMaxValueBytes) + " are expected",
                 "find out what listens there");
  }
  if (rest.size() - sizeof *length < *length) return false;
  out.emplace_back(rest.substr(sizeof *length, *length));
  start_ += sizeof *length + *length;
  return true;
}

Result<std::optional<StoreAnswer>> StoreAnswerParser::feed(std::string_view bytes) {
  buffer_.erase(0, start_);
  start_ = 0;
  buffer_.append(bytes);
  while (answer_.swapped.size() < num_swaps_) {
    const auto taken = take_blob(answer_.swapped);
    if (!taken) return taken.error();
    if (!*taken) return std::optional<StoreAnswer>();
  }
  if (has_counter_) {
    const auto count = peek_number<std::int64_t>(std::string_view(buffer_).substr(start_));
    if (!count) return std::optional<StoreAnswer>();
    answer_.count = *count;
    start_ += sizeof *count;
    has_counter_ = false;
  }
  while (answer_.values.size() < num_values_) {
    const auto taken = take_blob(answer_.values);
    if (!taken) return taken.error();
    if (!*taken) return std::optional<StoreAnswer>();
  }
  if (start_ < buffer_.size()) {
    return Error(ErrorCode::kProtocol,
                 "the store sends more than it was asked for",
                 "find out what listens there");
  }
  return std::optional(std::move(answer_));
}

// ---- the connection ----

class StoreClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  explicit Connection(asio::io_context& context) : socket_(context) {}

  void connect(const TcpEndpoint& store, StoreClient::ConnectHandler done) {
    // Its own socket(): what is spawned meanwhile must not inherit it.
    UniqueFd fd(::socket(store.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    boost::system::error_code failure;
    if (!fd) {
      failure.assign(errno, boost::system::system_category());
    } else {
      const int yes = 1;  // failing costs time only
      (void)::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
      socket_.assign(store.protocol(), fd.get(), failure);
      if (!failure) (void)fd.release();
    }
    if (failure) {
      return asio::post(socket_.get_executor(),
                        [self = shared_from_this(), done = std::move(done), failure] {
                          if (!self->is_closed_) done(failure);
                        });
    }
    socket_.async_connect(store,
                          [self = shared_from_this(),
                           done = std::move(done)](const boost::system::error_code& error) {
                            if (self->is_closed_) return;
                            if (error) return done(error);
                            append_code(self->out_, StoreCommand::kValidate);
                            append_u32(self->out_, kStoreMagic);
                            done({});
                          });
  }

  void exchange(const StoreExchange& wanted, std::function<void(Result<StoreAnswer>)> done) {
    out_ += encode(wanted);
    parser_.emplace(wanted);
    done_ = std::move(done);
    asio::async_write(socket_,
                      asio::buffer(out_),
                      [self = shared_from_this()](const boost::system::error_code& error,
                                                  std::size_t /*num_bytes*/) {
                        if (self->is_closed_) return;
                        self->out_.clear();
                        if (error) return self->fail(unreachable(errno_text(error.value())));
                        self->read();
                      });
  }

  void close() {
    is_closed_ = true;
    boost::system::error_code ignored;
    socket_.close(ignored);
  }

  [[nodiscard]] TcpEndpoint local_endpoint() const {
    boost::system::error_code unknown;
    return socket_.local_endpoint(unknown);
  }

 private:
  void read() {
    socket_.async_read_some(
        asio::buffer(in_),
        [self = shared_from_this()](const boost::system::error_code& error, std::size_t num_bytes) {
          if (self->is_closed_) return;
          if (error) return self->fail(lost(error));
          self->take({self->in_.data(), num_bytes});
        });
  }

  static Error lost(const boost::system::error_code& error) {
    return unreachable(error == asio::error::eof ? "the connection was closed"
                                                 : errno_text(error.value()));
  }

  void take(std::string_view bytes) {
    auto answer = parser_->feed(bytes);
    if (!answer) return fail(std::move(answer).error());
    if (!*answer) return read();
    std::exchange(done_, nullptr)(**std::move(answer));
  }

  void fail(Error error) {
    close();
    std::exchange(done_, nullptr)(std::move(error));
  }

  asio::ip::tcp::socket socket_;
  bool is_closed_ = false;
  std::string out_;  // begins with VALIDATE, until it is sent
  std::array<char, 16 << 10> in_{};
  std::optional<StoreAnswerParser> parser_;
  std::function<void(Result<StoreAnswer>)> done_;
};

StoreClient::StoreClient(asio::io_context& context) : context_(context) {}
StoreClient::~StoreClient() {
  close();
}

void StoreClient::connect(const TcpEndpoint& store, ConnectHandler done) {
  close();
  connection_ = std::make_shared<Connection>(context_);
  connection_->connect(store, std::move(done));
}

void StoreClient::exchange(const StoreExchange& wanted,
                           std::function<void(Result<StoreAnswer>)> done) {
  connection_->exchange(wanted, std::move(done));
}

void StoreClient::close() {
  if (connection_) std::exchange(connection_, nullptr)->close();
}

TcpEndpoint StoreClient::local_endpoint() const {
  return connection_ ? connection_->local_endpoint() : TcpEndpoint();
}

}  // namespace accel::supervisor
