#include "runtime/supervisor/owner/owner_link.h"

#include <utility>

#include <fcntl.h>
#include <poll.h>

#include "runtime/supervisor/protocol/short_frame.h"

namespace accel::supervisor {
namespace {

using boost::asio::posix::descriptor_base;

constexpr const char* kNotStored =
    "a message of its length could not be stored (see `ulimit -f`, `ulimit -n` and the limit of "
    "memory)";

// A copy for the loop to watch and close; -1 when fd is none.
int watched_copy(int fd) {
  return fd < 0 ? -1 : ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
}

}  // namespace

OwnerLink::OwnerLink(boost::asio::io_context& context,
                     FrameSocket socket,
                     UniqueFd owner_pidfd,
                     bool keeps_events)
    : socket_(std::move(socket)),
      owner_pidfd_(std::move(owner_pidfd)),
      stream_(context, watched_copy(socket_.fd())),
      owner_(context),
      keeps_events_(keeps_events) {
  if (owner_pidfd_) owner_.assign(owner_pidfd_.release());
}

void OwnerLink::listen(Handlers handlers) {
  handlers_ = std::move(handlers);
  wait_readable();
  wait_for_death();
}

void OwnerLink::send(const HostEvent& event) {
  if (is_lost_ && !keeps_events_) return;
  const bool is_last =
      std::holds_alternative<JobOutcome>(event) || std::holds_alternative<Refused>(event);
  if (queue_.size() >= kMaxQueuedEvents && !is_last) return;
  const bool is_long = text_bytes(event) > kMaxPayloadBytes;  // not encoded in vain
  std::string frame = is_long ? "" : encode(event);
  if (is_long || frame.size() > kMaxPayloadBytes) {
    auto shorter = short_frame(event, kMaxPayloadBytes, "it is longer than a message may be");
    if (shorter) frame = *std::move(shorter);
  }
  queue_.push_back(std::move(frame));
  if (!is_lost_ && !is_waiting_writable_) write_all();
}

void OwnerLink::flush(std::function<void()> done) {
  const bool is_heard = !is_lost_ && queue_.empty();
  if (is_heard || (is_lost_ && !keeps_events_)) return done();
  on_flushed_ = std::move(done);
}

void OwnerLink::attach(FrameSocket socket, UniqueFd owner_pidfd, const HostEvent& first) {
  ++serial_;
  boost::system::error_code ignored;
  stream_.close(ignored);
  owner_.close(ignored);
  socket_ = std::move(socket);
  stream_.assign(watched_copy(socket_.fd()), ignored);
  if (owner_pidfd) owner_.assign(owner_pidfd.release(), ignored);
  is_lost_ = is_waiting_writable_ = false;
  queue_.push_front(encode(first));
  wait_readable();
  wait_for_death();
  write_all();
}

void OwnerLink::give_up() {
  keeps_events_ = false;
  if (!is_lost_) return;
  queue_.clear();
  if (on_flushed_) std::exchange(on_flushed_, nullptr)();
}

void OwnerLink::wait_readable() {
  stream_.async_wait(descriptor_base::wait_read,
                     [this, serial = serial_](const boost::system::error_code& error) {
                       if (error || is_lost_ || serial != serial_) return;
                       read_all();
                       if (!is_lost_ && serial == serial_) wait_readable();
                     });
}

void OwnerLink::wait_writable() {
  is_waiting_writable_ = true;
  stream_.async_wait(descriptor_base::wait_write,
                     [this, serial = serial_](const boost::system::error_code& error) {
                       if (serial != serial_) return;
                       is_waiting_writable_ = false;
                       if (!error && !is_lost_) write_all();
                     });
}

void OwnerLink::wait_for_death() {
  if (!owner_.is_open()) return;
  owner_.async_wait(descriptor_base::wait_read,
                    [this, serial = serial_](const boost::system::error_code& error) {
                      if (!error && serial == serial_) lose();
                    });
}

void OwnerLink::read_all() {
  while (!is_lost_) {
    auto received = socket_.receive();
    if (!received) return lose();
    if (received->status == FrameSocket::Received::Status::kNothing) return;
    if (received->status == FrameSocket::Received::Status::kPeerGone) return lose();
    const auto request = decode_request(received->frame);
    if (!request) return lose();
    handlers_.on_request(*request);
  }
}

void OwnerLink::write_all() {
  while (!queue_.empty()) {
    switch (socket_.send(queue_.front())) {
      case FrameSocket::SendStatus::kSent:
        queue_.pop_front();
        break;
      case FrameSocket::SendStatus::kFull:
        if (!lacks_room_elsewhere()) return wait_writable();
        if (!shorten_first()) return lose();
        break;
      case FrameSocket::SendStatus::kPeerGone:
        return lose();
    }
  }
  if (on_flushed_) std::exchange(on_flushed_, nullptr)();
}

// A frame that goes beside the socket, in a memfd, needs descriptors, memory and a limit on files that lets it be: when
// the socket takes more, nothing tells when there is room.
bool OwnerLink::lacks_room_elsewhere() const {
  pollfd socket = {socket_.fd(), POLLOUT, 0};
  return queue_.front().size() > kMaxFrameBytes && ::poll(&socket, 1, 0) == 1;
}

bool OwnerLink::shorten_first() {
  const auto event = decode_event(queue_.front());
  auto shorter = event ? short_frame(*event, kMaxFrameBytes, kNotStored) : std::nullopt;
  if (shorter) queue_.front() = *std::move(shorter);
  return shorter.has_value();
}

void OwnerLink::lose() {
  if (std::exchange(is_lost_, true)) return;
  if (!keeps_events_) queue_.clear();
  socket_.close();
  boost::system::error_code ignored;
  stream_.cancel(ignored);
  if (owner_.is_open()) owner_.cancel(ignored);
  if (handlers_.on_lost) handlers_.on_lost();
  if (!keeps_events_ && on_flushed_) std::exchange(on_flushed_, nullptr)();
}

}  // namespace accel::supervisor
