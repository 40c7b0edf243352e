// StoreServer: the key-value store on which the workers of one generation bootstrap.
//
// Speaks c10d's TCPStore protocol (store_protocol.h), so that C++ and Python workers connect to it
// as to torchrun's agent store. One server per generation: destroying it cuts every client, and the
// next generation starts empty.
//
//   port   given by the user: exactly that one, with SO_REUSEADDR; otherwise the asked one when
//          it is free, else any
//   peers  of this machine only processes of `peer_uid` (tcp_table.h), of others only members
//   slow   a client that does not read is not read from either; nothing here ever blocks
//   bad    a client that breaks the protocol or a limit is disconnected and reported
//
// Threads:  one thread, the one that runs the io_context, which outlives the server.
// Cost:     one descriptor and about 1 KiB per connection; values and buffers within the limits.
// Source:   docs/internals/supervision.md "The store"; tests/unit/supervisor/store_server_test.cc;
//           tests/peer/store_client.py.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include <boost/asio/io_context.hpp>
#include <unistd.h>

#include <accel/result.h>

#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/store/store_table.h"

namespace accel::supervisor {

struct StoreOptions {
  StorePolicy policy;            // address and port
  uid_t peer_uid = ::geteuid();  // who may connect from this machine
  StoreLimits limits;
  std::size_t max_connections = 65'536;
  std::size_t max_buffered_bytes = 512u
                                   << 20;  // unfinished requests and unsent replies, all clients
  std::chrono::milliseconds partial_timeout{60'000};  // for the rest of a request that has begun
  // Told when a client is disconnected for what it did (at most 8 times per server), or when
  // descriptors ran out. May be empty.
  std::function<void(const Error&)> on_notice;
};

struct StoreCounters {
  std::size_t connections = 0;  // open now
  std::size_t keys = 0;
  std::size_t held_bytes = 0;      // keys, values, queues, waits
  std::size_t buffered_bytes = 0;  // unfinished requests and unsent replies
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;  // another uid, or too many connections
  std::uint64_t violations = 0;
};

class StoreServer {
 public:
  // Listens at once; clients are served when the io_context runs.
  //
  // Errors  those of listen_tcp() (tcp_listener.h).
  [[nodiscard]] static Result<std::unique_ptr<StoreServer>> listen(boost::asio::io_context& context,
                                                                   StoreOptions options);

  ~StoreServer();  // NOLINT(bugprone-exception-escape): cancelling a timer does not throw
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  [[nodiscard]] std::uint16_t port() const noexcept;
  [[nodiscard]] StoreCounters counters() const noexcept;

  // While the workers are stopped (Ctrl-Z) an unfinished request is nobody's fault: its time stands
  // still.
  void suspend_timeouts();
  void resume_timeouts();

 private:
  class Impl;
  explicit StoreServer(std::shared_ptr<Impl> impl);

  std::shared_ptr<Impl> impl_;  // shared with the handlers that are in flight, never beyond ours
};

}  // namespace accel::supervisor
