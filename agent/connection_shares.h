// ConnectionShares: how many connections there may be, in all and from one caller.
//
// Threads:  one thread at a time.
// Cost:     O(log callers).
#pragma once

#include <map>
#include <optional>
#include <string>

#include <sys/socket.h>

namespace accel::agent {

struct ConnectionLimits {
  int most = 1;       // in all
  int most_each = 1;  // of one caller
};

// Who shares a share: an IPv4 address; the first 64 bits of an IPv6 address, since a caller has all of them.
[[nodiscard]] std::string caller_of(const sockaddr_storage& address);

class ConnectionShares {
 public:
  explicit ConnectionShares(ConnectionLimits limits) : limits_(limits) {}

  // std::nullopt: counted. Else why there is no room.
  [[nodiscard]] std::optional<std::string> take(const std::string& caller);

  // Of a connection that was counted.
  void give_back(const std::string& caller);

  [[nodiscard]] int count() const { return count_; }

 private:
  ConnectionLimits limits_;
  int count_ = 0;
  std::map<std::string, int> callers_;
};

}  // namespace accel::agent
