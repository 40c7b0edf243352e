// ConnectionShares: how many connections there may be, in all and from one caller, and how many stay for favoured ones.
//
// Threads:  one thread at a time.
// Cost:     O(log callers).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/types.h>

namespace accel::agent {

struct ConnectionLimits {
  int most = 1;       // in all
  int most_each = 1;  // of one caller
  int kept = 0;       // of `most`, for favoured callers alone
};

// A caller that is a process of this user.
[[nodiscard]] std::string caller_of(uid_t user);

// Root and the agent's own user: those who mend an agent that others flood, and its own health check.
[[nodiscard]] std::vector<std::string> favoured_users();

// Who shares a share: an IPv4 address; the first 64 bits of an IPv6 address, since a caller has all of them.
[[nodiscard]] std::string caller_of(const sockaddr_storage& address);

class ConnectionShares {
 public:
  explicit ConnectionShares(ConnectionLimits limits, std::vector<std::string> favoured = {})
      : limits_(limits), favoured_(std::move(favoured)) {}

  // std::nullopt: counted. Else why there is no room.
  [[nodiscard]] std::optional<std::string> take(const std::string& caller);

  // Of a connection that was counted.
  void give_back(const std::string& caller);

  [[nodiscard]] int count() const { return count_; }

 private:
  ConnectionLimits limits_;
  std::vector<std::string> favoured_;
  int count_ = 0;
  std::map<std::string, int> callers_;
};

}  // namespace accel::agent
