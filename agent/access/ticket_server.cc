#include "agent/access/ticket_server.h"

#include <cerrno>

#include <fcntl.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "runtime/unix_address.h"

namespace accel::agent {
namespace {

namespace asio = boost::asio;

constexpr std::chrono::milliseconds kTicketRetry{100};

// Waits for the client to go, then takes its ticket back.
struct Connection {
  asio::posix::stream_descriptor stream;
  std::string ticket;
  std::string caller;
};

// Whether the socket is the one that clients find at `path`: it was bound there, and the file is there.
bool is_listening_at(int fd, const std::string& path) {
  return ::sd_is_socket_unix(fd, SOCK_SEQPACKET, /*listening=*/1, path.c_str(), path.size()) > 0 &&
         ::access(path.c_str(), F_OK) == 0;
}

}  // namespace

Result<std::unique_ptr<TicketServer>> TicketServer::listen(asio::io_context& context,
                                                           const std::string& path,
                                                           TicketBook& book,
                                                           UniqueFd kept) {
  const auto address = unix_address(path);
  if (!address) {
    return Error(ErrorCode::kInvalidArgument,
                 path + " is too long for a socket",
                 "choose a shorter runtime_dir: a socket's path has at most 107 bytes");
  }
  if (kept && is_listening_at(kept.get(), path)) {
    ::fcntl(kept.get(), F_SETFL, ::fcntl(kept.get(), F_GETFL) | O_NONBLOCK);
    return std::make_unique<TicketServer>(context, std::move(kept), book);
  }
  UniqueFd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  ::unlink(path.c_str());
  if (!socket ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof *address) != 0 ||
      ::listen(socket.get(), SOMAXCONN) != 0) {
    return Error(ErrorCode::kFileIo, "cannot listen at " + path + ": " + errno_text(errno));
  }
  return std::make_unique<TicketServer>(context, std::move(socket), book);
}

TicketServer::TicketServer(asio::io_context& context, UniqueFd socket, TicketBook& book)
    : context_(context),
      listener_(context, socket.release()),
      book_(book),
      pause_(context),
      spare_(::open("/dev/null", O_RDONLY | O_CLOEXEC)) {
  wait();
}

void TicketServer::wait() {
  listener_.async_wait(asio::posix::descriptor_base::wait_read,
                       [this](const boost::system::error_code& error) {
                         if (error) return;
                         accept_all() ? wait() : wait_later();
                       });
}

// false: one that waits cannot even be turned away, and would be found again at once.
bool TicketServer::accept_all() {
  while (true) {
    UniqueFd connection(
        ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    const bool lacks_files = !connection && (errno == EMFILE || errno == ENFILE);
    if (lacks_files && turn_away()) continue;
    if (!connection) return !lacks_files;
    serve(std::move(connection));
  }
}

void TicketServer::wait_later() {
  pause_.expires_after(kTicketRetry);
  pause_.async_wait([this](const boost::system::error_code& error) {
    if (!error && listener_.is_open()) wait();
  });
}

// A connection that nobody accepts keeps the listener readable, and the loop would turn without end. So it is accepted and
// closed.
bool TicketServer::turn_away() {
  spare_.reset();
  UniqueFd connection(
      ::accept4(listener_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  const bool has_closed_one = static_cast<bool>(connection);
  connection.reset();
  // Another thread may have taken the place meanwhile.
  spare_ = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  return has_closed_one;
}

void TicketServer::serve(UniqueFd connection) {
  ucred peer{};
  socklen_t size = sizeof peer;
  if (::getsockopt(connection.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0) return;
  // Too many: the newcomer sees its connection closed and says so.
  const std::string caller = caller_of(peer.uid);
  if (shares_.take(caller)) return;
  const auto ticket = book_.issue({peer.uid, peer.gid, peer.pid});
  const bool is_given =
      ticket && ::send(connection.get(), ticket->data(), ticket->size(), MSG_NOSIGNAL) >= 0;
  if (!is_given) {
    if (ticket) book_.take_back(*ticket);
    return shares_.give_back(caller);
  }
  auto held = std::make_shared<Connection>(
      Connection{asio::posix::stream_descriptor(context_, connection.release()), *ticket, caller});
  held->stream.async_wait(asio::posix::descriptor_base::wait_read,
                          [this, held](const boost::system::error_code& error) {
                            if (error == asio::error::operation_aborted) return;
                            shares_.give_back(held->caller);
                            book_.take_back(held->ticket);
                          });
}

}  // namespace accel::agent
