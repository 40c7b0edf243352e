// TicketServer: the SEQPACKET socket on which local callers get their tickets.
//
// A connection gets one packet, the ticket in hexadecimal, and holds it until the connection is closed. What a client
// sends is not read.
//
// Threads:  the one that runs the io_context.
#pragma once

#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>

#include <accel/result.h>

#include "agent/access/caller_shares.h"
#include "agent/access/ticket_book.h"
#include "runtime/unique_fd.h"

namespace accel::agent {

class TicketServer {
 public:
  static constexpr int kMaxConnections = 256;  // in all
  static constexpr int kMaxEach = 128;         // of one user
  static constexpr int kKept = 32;             // for root and the agent's own user

  // Listens at `path`, with `kept` when that is the socket of this path which an agent before this one listened on: who
  // connected in between is served then. Else an old socket there is removed. Errors  kFileIo.
  [[nodiscard]] static Result<std::unique_ptr<TicketServer>> listen(
      boost::asio::io_context& context,
      const std::string& path,
      TicketBook& book,
      UniqueFd kept = {});
  TicketServer(boost::asio::io_context& context, UniqueFd socket, TicketBook& book);

  void close() { listener_.close(); }
  [[nodiscard]] int fd() { return listener_.native_handle(); }

 private:
  void wait();
  [[nodiscard]] bool accept_all();
  void wait_later();
  void serve(UniqueFd connection);
  bool turn_away();

  boost::asio::io_context& context_;
  boost::asio::posix::stream_descriptor listener_;
  TicketBook& book_;
  CallerShares shares_{
      {.most = kMaxConnections, .most_each = kMaxEach, .kept = kKept, .leaves_room = true},
      favoured_users()};
  boost::asio::steady_timer pause_;
  UniqueFd spare_;  // given up for a moment when no descriptor is left, to turn the caller away
};

}  // namespace accel::agent
