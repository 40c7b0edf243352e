#include "agent/calls/connection_gate.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <optional>
#include <utility>

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "agent/calls/listener.h"
#include "runtime/supervisor/http/listening_socket.h"

namespace accel::agent {
namespace {

constexpr int kGateBacklog = 4096;  // a connect() beyond it fails at once on a unix socket
constexpr int kPauseMs = 100;
constexpr int kMostLocal = 512;
// Jobs, logs, records, gRPC's own, connections of local users.
constexpr rlim_t kOtherFiles = 512;

// The caller learns at once, and nothing of it stays in TIME_WAIT.
void reset(UniqueFd connection) {
  const linger now = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(connection.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
}

// Of the process that connected.
std::string local_caller_of(int connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return "nobody";
  return caller_of(peer.uid);
}

bool watch_for(int events, int fd, std::uint32_t what) {
  epoll_event event{};
  event.events = what;
  event.data.fd = fd;
  return ::epoll_ctl(events, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

namespace {

// Twice the connections that there is room for, beside `others`.
ShareLimits within(ShareLimits wanted, rlim_t room) {
  const int most = static_cast<int>(std::min<rlim_t>(std::max<rlim_t>(room, 1), INT_MAX));
  return {.most = std::min(wanted.most, most),
          .most_each = std::min(wanted.most_each, most),
          .kept = std::min(wanted.kept, most / 2)};
}

std::optional<rlim_t> file_limit() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
    return std::nullopt;
  return files.rlim_cur;
}

}  // namespace

ShareLimits within_open_files(ShareLimits wanted) {
  const auto files = file_limit();
  if (!files) return wanted;
  return within(wanted, *files > 2 * kOtherFiles ? (*files - kOtherFiles) / 2 : *files / 4);
}

// Of kOtherFiles, or of what is left where there are not so many, they get no more than half.
ShareLimits local_connection_limits() {
  const auto files = file_limit();
  const ShareLimits all = {
      .most = kMostLocal, .most_each = kMostLocal / 2, .kept = kMostLocal / 8, .leaves_room = true};
  if (!files) return all;
  const ShareLimits held = within(all, *files / 8);
  return {.most = held.most,
          .most_each = std::max(1, held.most / 2),
          .kept = held.most / 8,
          .leaves_room = true};
}

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::open(
    const supervisor::TcpEndpoint& endpoint, ShareLimits limits) {
  auto listener = supervisor::listen_at(endpoint, kGateBacklog);
  if (!listener) return std::move(listener).error();
  return watch(*std::move(listener), limits);
}

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::open(const std::string& path,
                                                             ShareLimits limits) {
  auto listener = listen_at_path(path, kGateBacklog);
  if (!listener) return std::move(listener).error();
  return watch(*std::move(listener), limits);
}

Result<std::unique_ptr<ConnectionGate>> ConnectionGate::watch(UniqueFd listener,
                                                              ShareLimits limits) {
  const int port = supervisor::port_of(listener.get());
  std::unique_ptr<ConnectionGate> gate(new ConnectionGate(std::move(listener), port, limits));
  gate->events_ = UniqueFd(::epoll_create1(EPOLL_CLOEXEC));
  gate->wake_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  const int events = gate->events_.get();
  if (!watch_for(events, gate->wake_.get(), EPOLLIN) ||
      !watch_for(events, gate->listener_.get(), EPOLLIN)) {
    return Error(ErrorCode::kFileIo, "cannot wait for connections: " + errno_text(errno));
  }
  return gate;
}

ConnectionGate::ConnectionGate(UniqueFd listener, int port, ShareLimits limits)
    : listener_(std::move(listener)), port_(port), shares_(limits, favoured_users()) {}

ConnectionGate::~ConnectionGate() {
  close();
}

void ConnectionGate::start(Handlers handlers) {
  handlers_ = std::move(handlers);
  thread_ = std::thread([this] { run(); });
  ::pthread_setname_np(thread_.native_handle(), "accel-gate");
}

void ConnectionGate::close() {
  if (!thread_.joinable()) return;
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
  thread_.join();
  listener_.reset();
}

void ConnectionGate::run() {
  std::array<epoll_event, 64> ready{};
  while (true) {
    const int count = ::epoll_wait(
        events_.get(), ready.data(), static_cast<int>(ready.size()), is_paused_ ? kPauseMs : -1);
    if (is_paused_) listen_again();
    for (int i = 0; i < count; ++i) {
      const int fd = ready[static_cast<std::size_t>(i)].data.fd;
      if (fd == wake_.get()) return;
      if (fd == listener_.get()) {
        accept_waiting();
      } else if ((ready[static_cast<std::size_t>(i)].events & EPOLLHUP) != 0) {
        forget(fd);
      }
    }
  }
}

void ConnectionGate::accept_waiting() {
  // Not without end: those that close want to be heard, too.
  for (int i = 0; i < 64; ++i) {
    sockaddr_storage address{};
    socklen_t size = sizeof address;
    UniqueFd connection(::accept4(listener_.get(),
                                  reinterpret_cast<sockaddr*>(&address),
                                  &size,
                                  SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (connection) {
      const std::string caller =
          address.ss_family == AF_UNIX ? local_caller_of(connection.get()) : caller_of(address);
      admit(std::move(connection), caller);
      continue;
    }
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      handlers_.on_refused("no connection can be accepted: " + errno_text(errno));
      epoll_event none{};
      none.data.fd = listener_.get();
      is_paused_ = ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, listener_.get(), &none) == 0;
      return;
    }
    if (errno == EAGAIN) return;
    // Else: that one was gone before it was accepted.
  }
}

void ConnectionGate::listen_again() {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = listener_.get();
  is_paused_ = ::epoll_ctl(events_.get(), EPOLL_CTL_MOD, listener_.get(), &event) != 0;
}

void ConnectionGate::admit(UniqueFd connection, const std::string& caller) {
  if (const auto why = shares_.take(caller)) {
    reset(std::move(connection));
    return handlers_.on_refused("refused a connection from " + caller + ": " + *why);
  }
  UniqueFd duplicate(::fcntl(connection.get(), F_DUPFD_CLOEXEC, 0));
  // Edges: an error that gRPC has yet to read is told once.
  if (!duplicate || !watch_for(events_.get(), duplicate.get(), EPOLLET)) {
    shares_.give_back(caller);
    reset(std::move(connection));
    return handlers_.on_refused("refused a connection from " + caller + ": " + errno_text(errno));
  }
  const int number = duplicate.get();
  watches_[number] = {.duplicate = std::move(duplicate), .caller = caller};
  handlers_.on_connection(std::move(connection));
}

void ConnectionGate::forget(int watch) {
  const auto found = watches_.find(watch);
  if (found == watches_.end()) return;
  shares_.give_back(found->second.caller);
  watches_.erase(found);
}

}  // namespace accel::agent
