// OwnerLink: the shim's end of the pair with its owner, on the event loop.
//
// Events are queued and written as the owner takes them: an owner that is stopped (Ctrl-Z) or slow
// never holds the supervisor up. Above kMaxQueuedEvents everything but the last event is dropped.
// While the shim holds there is no owner: events are kept for the next one.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

class OwnerLink {
 public:
  static constexpr std::size_t kMaxQueuedEvents = 4096;

  // `on_lost` comes when the owner is gone or speaks nonsense; nothing comes after it, unless another
  // one is attached.
  struct Handlers {
    std::function<void(const HostRequest&)> on_request;
    std::function<void()> on_lost;
  };

  OwnerLink(boost::asio::io_context& context,
            FrameSocket socket,
            UniqueFd owner_pidfd,
            bool keeps_events = false);

  void listen(Handlers handlers);
  void send(const HostEvent& event);

  // Calls `done` when everything is sent, or the owner is gone and none is waited for.
  void flush(std::function<void()> done);

  [[nodiscard]] bool has_owner() const { return !is_lost_; }

  // A new owner after the loss of the one before: gets `first`, then the events that were kept.
  void attach(FrameSocket socket, UniqueFd owner_pidfd, const HostEvent& first);

  // No other owner is waited for.
  void give_up();

 private:
  void wait_readable();
  void wait_writable();
  void wait_for_death();
  void read_all();
  void write_all();
  [[nodiscard]] bool lacks_room_elsewhere() const;
  bool shorten_first();  // false: it has no texts to leave out
  void lose();

  FrameSocket socket_;
  UniqueFd owner_pidfd_;
  boost::asio::posix::stream_descriptor stream_;  // borrows the socket's descriptor
  boost::asio::posix::stream_descriptor owner_;   // borrows the pidfd
  Handlers handlers_;
  std::deque<std::string> queue_;
  bool keeps_events_;
  std::uint64_t serial_ = 0;  // of the owner; a handler of an earlier one is late
  bool is_waiting_writable_ = false;
  bool is_lost_ = false;
  std::function<void()> on_flushed_;
};

}  // namespace accel::supervisor
