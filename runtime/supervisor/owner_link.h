// OwnerLink: the shim's end of the pair with its owner, on the event loop.
//
// Events are queued and written as the owner takes them: an owner that is stopped (Ctrl-Z) or slow
// never holds the supervisor up. Above kMaxQueuedEvents everything but the last event is dropped.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "runtime/supervisor/frames.h"

namespace accel::supervisor {

class OwnerLink {
 public:
  static constexpr std::size_t kMaxQueuedEvents = 4096;

  // `on_lost` comes once, when the owner is gone or speaks nonsense; nothing comes after it.
  struct Handlers {
    std::function<void(const HostRequest&)> on_request;
    std::function<void()> on_lost;
  };

  OwnerLink(boost::asio::io_context& context, FrameSocket socket, UniqueFd owner_pidfd);

  void listen(Handlers handlers);
  void send(const HostEvent& event);

  // Calls `done` when everything is sent or the owner is gone.
  void flush(std::function<void()> done);

 private:
  void wait_readable();
  void wait_writable();
  void wait_for_death();
  void read_all();
  void write_all();
  void lose();

  FrameSocket socket_;
  UniqueFd owner_pidfd_;
  boost::asio::posix::stream_descriptor stream_;  // borrows the socket's descriptor
  boost::asio::posix::stream_descriptor owner_;   // borrows the pidfd
  Handlers handlers_;
  std::deque<std::string> queue_;
  bool is_waiting_writable_ = false;
  bool is_lost_ = false;
  std::function<void()> on_flushed_;
};

}  // namespace accel::supervisor
