// NameLookup: the addresses of a host name, looked up by a thread that nobody waits for.
//
// getaddrinfo() has no deadline: where no name server answers it takes minutes. So its thread is detached, and neither who
// asks nor the end of the program waits for it.
//
// Threads:  see each; a resolver is called on a thread of its own.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <boost/asio/any_io_executor.hpp>

#include <accel/result.h>

namespace accel::launcher {

// What one look-up gives: numeric addresses, IPv6 without brackets; none, or an error that says why, when there is no
// such name.
using HostAddresses = Result<std::vector<std::string>>;
using Resolver = std::function<HostAddresses(const std::string& host)>;
[[nodiscard]] Resolver system_resolver();

// Calls `done` on a thread of its own, or on this one when no thread can be had.
void look_up_detached(std::string host, Resolver resolver, std::function<void(HostAddresses)> done);

// One look-up for an event loop.
class NameLookup {
 public:
  // Calls `done` on `executor`, which is kept busy until then, unless this object goes before.
  NameLookup(const boost::asio::any_io_executor& executor,
             std::string host,
             Resolver resolver,
             std::function<void(HostAddresses)> done);
  // On the thread that runs `executor`.
  ~NameLookup();
  NameLookup(const NameLookup&) = delete;
  NameLookup& operator=(const NameLookup&) = delete;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace accel::launcher
