#include "libaccel/engine/remote/shard_server.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <utility>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <accel/error.h>

#include "runtime/printable.h"

namespace accel::sharding {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::array<char, 16> kGreeting = {"accel shards 1\n"};
using Greeting = std::array<char, kGreeting.size() + ShardToken{}.size()>;

Greeting greeting_of(const ShardToken& token) {
  Greeting greeting{};
  std::copy(kGreeting.begin(), kGreeting.end(), greeting.begin());
  std::copy(token.begin(), token.end(), greeting.begin() + kGreeting.size());
  return greeting;
}

// In a time that does not depend on where they differ.
bool is_equal(const Greeting& one, const Greeting& other) {
  unsigned difference = 0;
  for (std::size_t i = 0; i < one.size(); ++i)
    difference |= static_cast<unsigned char>(one[i]) ^ static_cast<unsigned char>(other[i]);
  return difference == 0;
}

template <typename Number>
std::array<unsigned char, sizeof(Number)> little_endian(Number number) {
  std::array<unsigned char, sizeof(Number)> bytes{};
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<unsigned char>(number >> (8 * i));
  return bytes;
}

template <typename Number>
Number from_little_endian(const std::array<unsigned char, sizeof(Number)>& bytes) {
  Number number = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) number |= static_cast<Number>(bytes[i]) << (8 * i);
  return number;
}

// One connection. Alive as long as something of it is awaited.
class Session : public std::enable_shared_from_this<Session> {
 public:
  Session(tcp::socket socket, const ShardServer::Options& options, int& num_sessions)
      : socket_(std::move(socket)),
        options_(options),
        num_sessions_(num_sessions),
        limit_(socket_.get_executor()) {
    ++num_sessions_;
  }
  ~Session() { --num_sessions_; }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void start() {
    limit_.expires_after(options_.greeting_limit);
    limit_.async_wait([self = shared_from_this()](const error_code& error) {
      error_code ignored;
      if (!error) self->socket_.close(ignored);
    });
    asio::async_read(socket_,
                     asio::buffer(greeting_),
                     [self = shared_from_this()](const error_code& error, std::size_t) {
                       self->limit_.cancel();
                       if (!error && is_equal(self->greeting_, greeting_of(self->options_.token)))
                         self->await_request();
                     });
  }

 private:
  void await_request() {
    asio::async_read(socket_,
                     asio::buffer(request_),
                     [self = shared_from_this()](const error_code& error, std::size_t) {
                       if (!error) self->answer();
                     });
  }

  void answer() {
    const auto unit = from_little_endian<std::uint32_t>(request_);
    if (unit >= options_.num_units) return;
    const std::span<const std::byte> shard = options_.shard_of(unit);
    length_ = little_endian(static_cast<std::uint64_t>(shard.size()));
    const std::array<asio::const_buffer, 2> parts = {asio::buffer(length_),
                                                     asio::buffer(shard.data(), shard.size())};
    asio::async_write(
        socket_, parts, [self = shared_from_this()](const error_code& error, std::size_t) {
          if (!error) self->await_request();
        });
  }

  tcp::socket socket_;
  const ShardServer::Options& options_;
  int& num_sessions_;
  asio::steady_timer limit_;
  Greeting greeting_{};
  std::array<unsigned char, 4> request_{};
  std::array<unsigned char, 8> length_{};
};

void set_option(int socket, int level, int name, int value) {
  ::setsockopt(socket, level, name, &value, sizeof value);
}

// A machine that is gone answers no probe: 5 s of silence, then three probes, 5 s apart.
void watch_peer(int socket) {
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 3);
  set_option(
      socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 20'000);  // no probes go out while data is under way
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
}

}  // namespace

ShardToken make_shard_token() {
  ShardToken token{};
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size()))
    throw Error(ErrorCode::kInternal, "no random bytes for a token: " + errno_text(errno));
  return token;
}

std::string to_text(const ShardToken& token) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char byte : token) {
    text += digits[static_cast<unsigned char>(byte) >> 4];
    text += digits[static_cast<unsigned char>(byte) & 15];
  }
  return text;
}

Result<ShardToken> parse_shard_token(std::string_view text) {
  ShardToken token{};
  const auto value_of = [](char digit) {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    return -1;
  };
  bool is_right = text.size() == 2 * token.size();
  for (std::size_t i = 0; is_right && i < token.size(); ++i) {
    const int high = value_of(text[2 * i]);
    const int low = value_of(text[2 * i + 1]);
    is_right = high >= 0 && low >= 0;
    token[i] = static_cast<char>(high * 16 + low);
  }
  if (is_right) return token;
  return Error(ErrorCode::kInvalidArgument, "a token of shards has 32 hexadecimal digits");
}

// ---- server ----

struct ShardServer::Host {
  explicit Host(Options wanted) : options(std::move(wanted)) {}

  void accept() {
    acceptor.async_accept([this](const error_code& error, tcp::socket socket) {
      if (error == asio::error::operation_aborted) return;
      if (error) {  // no descriptor left, say: others may close theirs
        pause.expires_after(std::chrono::milliseconds(100));
        pause.async_wait([this](const error_code& stopped) {
          if (!stopped) accept();
        });
        return;
      }
      if (num_sessions < options.max_connections) {
        watch_peer(socket.native_handle());
        std::make_shared<Session>(std::move(socket), options, num_sessions)->start();
      }
      accept();
    });
  }

  Options options;
  int num_sessions = 0;
  asio::io_context context{1};
  tcp::acceptor acceptor{context};
  asio::steady_timer pause{context};
};

namespace {

// Signals are for the program's own threads.
std::thread quiet_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(body));
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

// A socket of the IPv6 wildcard takes IPv4 too.
void listen_at(tcp::acceptor& acceptor, const tcp::endpoint& endpoint, error_code& error) {
  error_code ignored;
  acceptor.close(ignored);
  error = {};
  acceptor.open(endpoint.protocol(), error);
  if (!error && endpoint.address() == asio::ip::address_v6::any())
    acceptor.set_option(asio::ip::v6_only(false), error);
  if (!error) acceptor.bind(endpoint, error);
  if (!error) acceptor.listen(tcp::socket::max_listen_connections, error);
}

}  // namespace

ShardServer::ShardServer(std::unique_ptr<Host> host)
    : host_(std::move(host)),
      thread_(quiet_thread([host = host_.get()] { host->context.run(); })) {}

ShardServer::~ShardServer() {
  host_->context.stop();
  thread_.join();
}

int ShardServer::port() const noexcept {
  error_code ignored;
  return host_->acceptor.local_endpoint(ignored).port();
}

Result<std::unique_ptr<ShardServer>> ShardServer::listen(const std::string& address,
                                                         Options options) {
  auto host = std::make_unique<Host>(std::move(options));
  error_code error;
  if (address.empty()) {
    listen_at(host->acceptor, {tcp::v6(), 0}, error);
    if (error) listen_at(host->acceptor, {tcp::v4(), 0}, error);  // a kernel without IPv6
  } else if (const auto wanted = asio::ip::make_address(address, error); !error) {
    listen_at(host->acceptor, {wanted, 0}, error);
  }
  if (error)
    return Error(ErrorCode::kInternal,
                 "cannot listen for ranks that ask for shards: " + error.message());
  host->accept();
  return std::unique_ptr<ShardServer>(new ShardServer(std::move(host)));
}

// ---- client ----

namespace {

Error lost(int rank, const std::string& what) {
  return Error(ErrorCode::kPeerLost,
               "rank " + std::to_string(rank) + " gives no parameters: " + what,
               "see why it ended; at the end of a program call accelerator.wait_for_everyone() "
               "before the first rank "
               "leaves while others still use the model");
}

std::string what_failed() {
  if (errno == EAGAIN || errno == EWOULDBLOCK) return "it does not answer";
  return errno_text(errno);
}

void send_all(int rank, int socket, const void* data, std::size_t size) {
  const char* rest = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = ::send(socket, rest, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw lost(rank, what_failed());
    rest += sent;
    size -= static_cast<std::size_t>(sent);
  }
}

// A shard on its way: its length, then its bytes.
class Arrival {
 public:
  Arrival(const WantedShard& wanted, std::size_t unit, UniqueFd connection)
      : wanted_(wanted), unit_(unit), connection_(std::move(connection)) {}

  [[nodiscard]] int socket() const noexcept { return connection_.get(); }
  [[nodiscard]] int rank() const noexcept { return wanted_.rank; }
  [[nodiscard]] bool is_whole() const noexcept {
    return got_ == length_.size() + wanted_.into.size();
  }
  [[nodiscard]] UniqueFd take_connection() noexcept { return std::move(connection_); }

  // What is there now, up to the end of the length or of the shard.
  void receive_some() {
    const bool is_length = got_ < length_.size();
    void* const into = is_length
                           ? static_cast<void*>(length_.data() + got_)
                           : static_cast<void*>(wanted_.into.data() + (got_ - length_.size()));
    const std::size_t rest =
        is_length ? length_.size() - got_ : length_.size() + wanted_.into.size() - got_;
    const ssize_t got = ::recv(connection_.get(), into, rest, MSG_DONTWAIT);
    if (got == 0) throw lost(wanted_.rank, "it ended the connection");
    if (got < 0) {
      if (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK) return;
      throw lost(wanted_.rank, what_failed());
    }
    got_ += static_cast<std::size_t>(got);
    if (is_length && got_ == length_.size()) compare_length();
  }

 private:
  void compare_length() const {
    const auto bytes = from_little_endian<std::uint64_t>(length_);
    if (bytes == wanted_.into.size()) return;
    throw Error(ErrorCode::kShapeMismatch,
                "rank " + std::to_string(wanted_.rank) + " has " + std::to_string(bytes) +
                    " bytes in its shard of unit " + std::to_string(unit_) + ", and " +
                    std::to_string(wanted_.into.size()) + " are expected");
  }

  WantedShard wanted_;
  std::size_t unit_;
  UniqueFd connection_;
  std::array<unsigned char, 8> length_{};
  std::size_t got_ = 0;  // bytes, those of the length too
};

// The places of those that have something to be read, or an error. Waits for the first one.
std::vector<std::size_t> await_any(const std::vector<Arrival>& arrivals,
                                   std::chrono::milliseconds silence_limit) {
  std::vector<pollfd> sockets;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < arrivals.size(); ++i) {
    if (arrivals[i].is_whole()) continue;
    sockets.push_back({.fd = arrivals[i].socket(), .events = POLLIN, .revents = 0});
    places.push_back(i);
  }
  int num_ready = 0;
  do {
    num_ready = ::poll(sockets.data(), sockets.size(), static_cast<int>(silence_limit.count()));
  } while (num_ready < 0 && errno == EINTR);
  const int first = arrivals[places.front()].rank();
  if (num_ready < 0) throw lost(first, errno_text(errno));
  if (num_ready == 0) throw lost(first, "it does not answer");
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < sockets.size(); ++i)
    if (sockets[i].revents != 0) ready.push_back(places[i]);
  return ready;
}

}  // namespace

ShardClient::ShardClient(Options options) : options_(std::move(options)) {
  for (std::size_t i = 0; i < options_.endpoints.size(); ++i)
    lines_.push_back(std::make_unique<Line>());
}

ShardClient::~ShardClient() = default;

UniqueFd ShardClient::connect(int rank) const {
  const ShardEndpoint& endpoint = options_.endpoints.at(static_cast<std::size_t>(rank));
  error_code error;
  const auto address = asio::ip::make_address(endpoint.address, error);
  if (error) throw lost(rank, "it has no address ('" + printable(endpoint.address) + "')");
  const tcp::endpoint target(address, static_cast<unsigned short>(endpoint.port));
  UniqueFd socket(::socket(target.protocol().family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!socket) throw lost(rank, errno_text(errno));
  watch_peer(socket.get());
  const auto limit = options_.silence_limit.count();
  const timeval silence = {static_cast<std::time_t>(limit / 1000),
                           static_cast<suseconds_t>(limit % 1000 * 1000)};
  // SO_SNDTIMEO also limits connect() (socket(7)).
  ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence);
  ::setsockopt(socket.get(), SOL_SOCKET, SO_SNDTIMEO, &silence, sizeof silence);
  int status = 0;
  do {
    status = ::connect(socket.get(), target.data(), static_cast<socklen_t>(target.size()));
  } while (status != 0 && errno == EINTR);
  if (status != 0 && errno != EISCONN) {
    const std::string what = errno == EINPROGRESS ? "it does not answer" : errno_text(errno);
    throw lost(rank, endpoint.address + " port " + std::to_string(endpoint.port) + ": " + what);
  }
  const Greeting greeting = greeting_of(options_.token);
  send_all(rank, socket.get(), greeting.data(), greeting.size());
  return socket;
}

// The connection it was asked on. It leaves its line: after an error half an answer may be in it.
UniqueFd ShardClient::ask(int rank, std::size_t unit) {
  Line& line = *lines_.at(static_cast<std::size_t>(rank));
  if (!line.connection) line.connection = connect(rank);
  UniqueFd connection = std::move(line.connection);
  const auto request = little_endian(static_cast<std::uint32_t>(unit));
  send_all(rank, connection.get(), request.data(), request.size());
  return connection;
}

// All connections are read as bytes come: one whose bytes nobody takes would be closed by its owner's kernel
// (TCP_USER_TIMEOUT), however well both ranks are.
void ShardClient::fetch(std::size_t unit,
                        std::span<const WantedShard> wanted,
                        const std::function<void(std::size_t)>& arrived) {
  // By ascending rank, so that two threads which want the same ranks do not wait for each other.
  std::vector<std::unique_lock<std::mutex>> locks;
  std::vector<Arrival> arrivals;
  for (const WantedShard& shard : wanted)
    locks.emplace_back(lines_.at(static_cast<std::size_t>(shard.rank))->mutex);
  // Nobody is asked before all can be read.
  for (const WantedShard& shard : wanted) arrivals.emplace_back(shard, unit, ask(shard.rank, unit));
  for (std::size_t num_left = arrivals.size(); num_left > 0;) {
    for (const std::size_t i : await_any(arrivals, options_.silence_limit)) {
      arrivals[i].receive_some();
      if (!arrivals[i].is_whole()) continue;
      --num_left;
      lines_[static_cast<std::size_t>(wanted[i].rank)]->connection = arrivals[i].take_connection();
      locks[i].unlock();
      arrived(i);
    }
  }
}

}  // namespace accel::sharding
