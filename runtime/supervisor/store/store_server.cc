#include "runtime/supervisor/store/store_server.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "runtime/clock.h"
#include "runtime/supervisor/store/store_gate.h"
#include "runtime/supervisor/store/tcp_listener.h"

// One thread serves all clients, and none of them may hold it up:
//
//   read     readiness first, then one recv() of at most 64 KiB into a buffer that all share
//   serve    at most 256 requests, then the next client has its turn
//   write    at once, as much as the socket takes; the rest waits for writability
//   pause    while a client has more than 1 MiB of replies that it did not read, its requests are
//            neither read nor served
//
// A connection is closed only at the end of a handler, never while the table or a loop over clients
// uses it. Handlers know a connection by its id and look it up anew: one that is gone is no error.
// Sockets are opened by accept4() with SOCK_CLOEXEC; asio 1.81's own accept would let every worker
// that is spawned meanwhile inherit them.

namespace accel::supervisor {

namespace asio = boost::asio;

namespace {

constexpr std::size_t kReadBytes = 64 << 10;
constexpr std::size_t kPauseBytes = 1 << 20;
constexpr int kRequestsPerTurn = 256;
constexpr int kAcceptsPerTurn = 64;
constexpr std::uint64_t kMaxStoreNotices = 8;
constexpr std::chrono::milliseconds kDescriptorBackoff{100};

struct Connection {
  Connection(asio::io_context& context, StoreClientId client) : id(client), socket(context) {}

  [[nodiscard]] std::size_t unsent() const noexcept { return out.size() - sent; }

  StoreClientId id;
  asio::posix::stream_descriptor socket;
  StoreRequestParser parser;
  std::string out;
  std::size_t sent = 0;                       // of out
  bool is_reading = false;                    // a handler waits for input
  bool is_writing = false;                    // a handler waits for room in the socket
  bool is_turn_posted = false;                // more requests are there than one turn serves
  std::size_t counted_bytes = 0;              // its part of the server's buffered bytes
  std::optional<TimePoint> unfinished_since;  // when the request began that is not whole yet
};

// Gives the descriptor to asio; when asio cannot watch it (ENOSPC: the user's epoll watches are
// used up) it is closed.
boost::system::error_code adopt(asio::posix::stream_descriptor& target, UniqueFd fd) {
  boost::system::error_code error;
  target.assign(fd.get(), error);
  if (!error) (void)fd.release();
  return error;
}

}  // namespace

class StoreServer::Impl : public StoreOutbox, public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& context, StoreOptions options)
      : context_(context),
        options_(std::move(options)),
        listener_(context),
        backoff_(context),
        sweep_(context),
        table_(options_.limits, *this) {}

  [[nodiscard]] Result<void> start(TcpListener listener);
  void stop();

  [[nodiscard]] std::uint16_t port() const noexcept { return endpoint_.port(); }
  [[nodiscard]] StoreCounters counters() const noexcept;
  void suspend_timeouts();
  void resume_timeouts();

  void send(StoreClientId client, std::string_view bytes) override;

 private:
  enum class Accepted { kOne, kNoneLeft, kNoDescriptor };

  void wait_for_clients();
  void on_acceptable();
  [[nodiscard]] Accepted accept_one();
  [[nodiscard]] bool may_connect(const UniqueFd& socket, const TcpEndpoint& peer);
  void admit(UniqueFd socket);

  void arm_reading(Connection& connection);
  void on_readable(StoreClientId id);
  void take_turn(StoreClientId id);
  [[nodiscard]] Result<bool> serve(Connection& connection);
  void post_turn(Connection& connection);
  void flush_all();
  void flush(StoreClientId id);
  [[nodiscard]] bool write_some(Connection& connection);
  void arm_writing(Connection& connection);
  void recount(Connection& connection);
  [[nodiscard]] Error too_much_buffered() const;
  void disconnect(StoreClientId id);
  void disconnect_for(StoreClientId id, const Error& why);
  void notice(const Error& error);

  void note_progress(Connection& connection, bool completed_a_request);
  void arm_sweep();
  void sweep();

  Connection* find(StoreClientId id);
  // A handler that does nothing once the server is gone or the operation was cancelled.
  template <typename F>
  auto guarded(F&& body) {
    return [weak = weak_from_this(),
            body = std::forward<F>(body)](const boost::system::error_code& error) mutable {
      const std::shared_ptr<Impl> self = weak.lock();
      if (self && !error) body(*self);
    };
  }

  asio::io_context& context_;
  StoreOptions options_;
  TcpEndpoint endpoint_;
  asio::posix::stream_descriptor listener_;
  asio::steady_timer backoff_;
  asio::steady_timer sweep_;
  bool sweep_is_armed_ = false;
  bool timeouts_are_suspended_ = false;
  std::optional<StoreGate> gate_;  // from start() on
  StoreTable table_;
  StoreClientId next_client_ = 1;
  std::unordered_map<StoreClientId, std::unique_ptr<Connection>> connections_;
  std::vector<StoreClientId> to_flush_;  // clients that got replies since flush_all()
  StoreCounters counters_;
  std::uint64_t notices_ = 0;
  std::array<char, kReadBytes> read_buffer_;
};

// ---- life ----

Result<std::unique_ptr<StoreServer>> StoreServer::listen(asio::io_context& context,
                                                         StoreOptions options) {
  Result<TcpListener> listener = listen_tcp(options.policy);
  if (!listener) return std::move(listener).error();
  auto impl = std::make_shared<Impl>(context, std::move(options));
  if (Result<void> started = impl->start(*std::move(listener)); !started) {
    return std::move(started).error();
  }
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(impl)));
}

StoreServer::StoreServer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
// NOLINTNEXTLINE(bugprone-exception-escape): the timers' cancel() has no case that throws
StoreServer::~StoreServer() {
  impl_->stop();
}
std::uint16_t StoreServer::port() const noexcept {
  return impl_->port();
}
StoreCounters StoreServer::counters() const noexcept {
  return impl_->counters();
}
void StoreServer::suspend_timeouts() {
  impl_->suspend_timeouts();
}
void StoreServer::resume_timeouts() {
  impl_->resume_timeouts();
}

Result<void> StoreServer::Impl::start(TcpListener listener) {
  endpoint_ = listener.endpoint;
  auto gate = StoreGate::make(options_.policy.members, options_.peer_uid);
  if (!gate) return std::move(gate).error();
  gate_ = *std::move(gate);
  if (const auto error = adopt(listener_, std::move(listener.socket))) {
    return Error(ErrorCode::kInternal, "cannot watch the socket of the store: " + error.message());
  }
  wait_for_clients();
  return {};
}

void StoreServer::Impl::stop() {
  boost::system::error_code ignored;
  listener_.close(ignored);
  backoff_.cancel();
  sweep_.cancel();
  connections_.clear();
  options_.on_notice = nullptr;
}

StoreCounters StoreServer::Impl::counters() const noexcept {
  StoreCounters counters = counters_;
  counters.connections = connections_.size();
  counters.keys = table_.num_keys();
  counters.held_bytes = table_.held_bytes();
  return counters;
}

Connection* StoreServer::Impl::find(StoreClientId id) {
  const auto found = connections_.find(id);
  return found == connections_.end() ? nullptr : found->second.get();
}

// ---- new clients ----

void StoreServer::Impl::wait_for_clients() {
  listener_.async_wait(asio::posix::stream_descriptor::wait_read,
                       guarded([](Impl& self) { self.on_acceptable(); }));
}

void StoreServer::Impl::on_acceptable() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    const Accepted accepted = accept_one();
    if (accepted == Accepted::kNoneLeft) break;
    if (accepted == Accepted::kNoDescriptor) {
      // The client stays in the backlog; asking again at once would only burn the processor.
      backoff_.expires_after(kDescriptorBackoff);
      backoff_.async_wait(guarded([](Impl& self) { self.wait_for_clients(); }));
      notice(Error(ErrorCode::kStoreLimit,
                   "the store cannot accept a client: no file descriptor is left",
                   "raise the hard limit of open files (ulimit -Hn)"));
      return;
    }
  }
  wait_for_clients();
}

StoreServer::Impl::Accepted StoreServer::Impl::accept_one() {
  TcpEndpoint peer = endpoint_;
  auto size = static_cast<socklen_t>(peer.capacity());
  UniqueFd socket(
      ::accept4(listener_.native_handle(), peer.data(), &size, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket) {
    const bool is_out = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    if (is_out) return Accepted::kNoDescriptor;
    // A client that gave up before it was accepted is not the end of the queue.
    return errno == ECONNABORTED || errno == EINTR ? Accepted::kOne : Accepted::kNoneLeft;
  }
  if (connections_.size() >= options_.max_connections || !may_connect(socket, peer)) {
    ++counters_.refused;
    return Accepted::kOne;
  }
  admit(std::move(socket));
  return Accepted::kOne;
}

bool StoreServer::Impl::may_connect(const UniqueFd& socket, const TcpEndpoint& peer) {
  const Result<bool> admitted = gate_->admits(socket, peer);
  if (!admitted) notice(admitted.error());
  return admitted && *admitted;
}

void StoreServer::Impl::admit(UniqueFd socket) {
  const int yes = 1;  // replies are small and waited for; failing costs time only
  (void)::setsockopt(socket.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const StoreClientId id = next_client_++;
  auto connection = std::make_unique<Connection>(context_, id);
  if (adopt(connection->socket, std::move(socket))) {
    ++counters_.refused;
    return;
  }
  ++counters_.accepted;
  note_progress(*connection, false);  // it has to say VALIDATE in time, too
  arm_reading(*connection);
  connections_.emplace(id, std::move(connection));
}

// ---- requests ----

void StoreServer::Impl::arm_reading(Connection& connection) {
  if (connection.is_reading) return;
  connection.is_reading = true;
  connection.socket.async_wait(asio::posix::stream_descriptor::wait_read,
                               guarded([id = connection.id](Impl& self) { self.on_readable(id); }));
}

void StoreServer::Impl::on_readable(StoreClientId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  connection->is_reading = false;
  const ssize_t got = ::recv(
      connection->socket.native_handle(), read_buffer_.data(), read_buffer_.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return arm_reading(*connection);
  if (got <= 0) return disconnect(id);
  connection->parser.feed({read_buffer_.data(), static_cast<std::size_t>(got)});
  take_turn(id);
}

// Serves what has been read, and decides what this client waits for next.
void StoreServer::Impl::take_turn(StoreClientId id) {
  Connection* connection = find(id);
  if (connection == nullptr) return;
  const Result<bool> has_more = serve(*connection);
  flush_all();
  connection = find(id);  // flushing may have found it gone
  if (connection == nullptr) return;
  if (!has_more) return disconnect_for(id, has_more.error());
  recount(*connection);
  if (counters_.buffered_bytes > options_.max_buffered_bytes) {
    return disconnect_for(id, too_much_buffered());
  }
  if (connection->unsent() >= kPauseBytes) return;  // goes on when it has been written
  if (*has_more) return post_turn(*connection);
  arm_reading(*connection);
}

// Says whether whole requests may be left. Errors: the client broke the protocol or a limit.
Result<bool> StoreServer::Impl::serve(Connection& connection) {
  bool completed_a_request = false;
  for (int served = 0; served < kRequestsPerTurn; ++served) {
    if (connection.unsent() >= kPauseBytes) break;
    const Result<const StoreRequest*> request = connection.parser.next();
    if (!request) return request.error();
    if (*request == nullptr) {
      note_progress(connection, completed_a_request);
      return false;
    }
    completed_a_request = true;
    if (const Result<void> done = table_.apply(connection.id, **request); !done) {
      return done.error();
    }
  }
  connection.unfinished_since.reset();
  return true;
}

void StoreServer::Impl::post_turn(Connection& connection) {
  if (std::exchange(connection.is_turn_posted, true)) return;
  asio::post(context_, [weak = weak_from_this(), id = connection.id] {
    const std::shared_ptr<Impl> self = weak.lock();
    Connection* found = self ? self->find(id) : nullptr;
    if (found == nullptr) return;
    found->is_turn_posted = false;
    self->take_turn(id);
  });
}

// ---- replies ----

void StoreServer::Impl::send(StoreClientId client, std::string_view bytes) {
  Connection* connection = find(client);
  if (connection == nullptr) return;
  if (connection->unsent() == 0) to_flush_.push_back(client);
  connection->out.append(bytes);
}

void StoreServer::Impl::flush_all() {
  for (const StoreClientId id : std::exchange(to_flush_, {})) flush(id);
}

void StoreServer::Impl::flush(StoreClientId id) {
  Connection* connection = find(id);
  if (connection == nullptr || connection->is_writing) return;
  if (!write_some(*connection)) return disconnect(id);
  recount(*connection);
  if (connection->unsent() > 0) arm_writing(*connection);
}

// Writes what the socket takes now. False: the client is gone.
bool StoreServer::Impl::write_some(Connection& connection) {
  while (connection.unsent() > 0) {
    const ssize_t put = ::send(connection.socket.native_handle(),
                               connection.out.data() + connection.sent,
                               connection.unsent(),
                               MSG_DONTWAIT | MSG_NOSIGNAL);
    if (put >= 0) {
      connection.sent += static_cast<std::size_t>(put);
    } else if (errno == EAGAIN) {
      if (connection.sent > kReadBytes) {
        connection.out.erase(0, std::exchange(connection.sent, 0));
      }
      return true;
    } else if (errno != EINTR) {
      return false;
    }
  }
  connection.out.clear();
  connection.sent = 0;
  if (connection.out.capacity() > kReadBytes) std::string().swap(connection.out);
  return true;
}

void StoreServer::Impl::arm_writing(Connection& connection) {
  connection.is_writing = true;
  connection.socket.async_wait(asio::posix::stream_descriptor::wait_write,
                               guarded([id = connection.id](Impl& self) {
                                 Connection* found = self.find(id);
                                 if (found == nullptr) return;
                                 found->is_writing = false;
                                 self.flush(id);
                                 found = self.find(id);
                                 // It may have been paused: then nobody else serves it.
                                 if (found != nullptr && !found->is_reading) self.take_turn(id);
                               }));
}

// Keeps the sum over all clients.
void StoreServer::Impl::recount(Connection& connection) {
  const std::size_t bytes = connection.parser.pending_bytes() + connection.unsent();
  counters_.buffered_bytes += bytes - connection.counted_bytes;
  connection.counted_bytes = bytes;
}

Error StoreServer::Impl::too_much_buffered() const {
  return {ErrorCode::kStoreLimit,
          "unfinished requests and unread replies of all clients exceed " +
              std::to_string(options_.max_buffered_bytes) + " bytes"};
}

void StoreServer::Impl::disconnect(StoreClientId id) {
  const auto found = connections_.find(id);
  if (found == connections_.end()) return;
  counters_.buffered_bytes -= found->second->counted_bytes;
  connections_.erase(found);
  table_.forget(id);
}

void StoreServer::Impl::disconnect_for(StoreClientId id, const Error& why) {
  ++counters_.violations;
  disconnect(id);
  notice(Error(why).while_doing("serving a client of the store (it was disconnected)"));
}

// The one who is told may end this server: nothing is done to a client after it.
void StoreServer::Impl::notice(const Error& error) {
  if (notices_++ >= kMaxStoreNotices || !options_.on_notice) return;
  const auto tell = options_.on_notice;
  tell(error);
}

// ---- requests that do not end ----

void StoreServer::Impl::note_progress(Connection& connection, bool completed_a_request) {
  if (connection.parser.is_between_requests()) {
    connection.unfinished_since.reset();
    return;
  }
  if (completed_a_request || !connection.unfinished_since) {
    connection.unfinished_since = std::chrono::steady_clock::now();
  }
  arm_sweep();
}

void StoreServer::Impl::arm_sweep() {
  if (timeouts_are_suspended_ || std::exchange(sweep_is_armed_, true)) return;
  sweep_.expires_after(std::max(options_.partial_timeout / 4, std::chrono::milliseconds(1)));
  sweep_.async_wait(guarded([](Impl& self) {
    self.sweep_is_armed_ = false;
    if (!self.timeouts_are_suspended_) self.sweep();
  }));
}

void StoreServer::Impl::sweep() {
  const TimePoint now = std::chrono::steady_clock::now();
  std::vector<StoreClientId> late;
  bool some_are_unfinished = false;
  for (const auto& [id, connection] : connections_) {
    if (!connection->unfinished_since) continue;
    some_are_unfinished = true;
    if (now - *connection->unfinished_since >= options_.partial_timeout) late.push_back(id);
  }
  if (some_are_unfinished) arm_sweep();
  for (const StoreClientId id : late) {
    disconnect_for(id,
                   Error(ErrorCode::kProtocol,
                         "a request was not finished within " +
                             std::to_string(options_.partial_timeout.count()) + " ms"));
  }
}

void StoreServer::Impl::suspend_timeouts() {
  timeouts_are_suspended_ = true;
}

void StoreServer::Impl::resume_timeouts() {
  timeouts_are_suspended_ = false;
  for (auto& [id, connection] : connections_) {
    if (connection->unfinished_since) {
      connection->unfinished_since = std::chrono::steady_clock::now();
    }
  }
  arm_sweep();
}

}  // namespace accel::supervisor
