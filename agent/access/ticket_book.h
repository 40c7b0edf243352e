// TicketBook: which ticket stands for which local user.
//
// gRPC does not tell who is at the other end of a unix socket. So a local caller first connects to the ticket socket,
// where the kernel vouches for it (SO_PEERCRED), and gets a ticket: 256 random bits, which it then shows in the
// metadata of its calls. A ticket is good for new calls for 30 s and only while the connection it was given on is open.
//
// Threads:  one thread.
// Source:   docs/admin/security.md.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <sys/types.h>

#include "runtime/clock.h"

namespace accel::agent {

struct LocalUser {
  uid_t uid = 0;
  gid_t gid = 0;
  pid_t pid = 0;
};

// `size` bytes from the kernel's generator.
[[nodiscard]] std::string random_bytes(std::size_t size);
[[nodiscard]] std::string to_hex(std::string_view bytes);

// Whether both are the same, in a time that does not tell where they differ.
[[nodiscard]] bool equal_in_constant_time(std::string_view a, std::string_view b);

class TicketBook {
 public:
  static constexpr std::chrono::seconds kLifetime{30};
  static constexpr std::size_t kMaxTickets = 4096;

  explicit TicketBook(const Clock& clock) : clock_(clock) {}

  // A new ticket in hexadecimal; std::nullopt when too many are out.
  [[nodiscard]] std::optional<std::string> issue(const LocalUser& user);

  // Whose ticket it is; std::nullopt for one that was never given, is over, or was taken back.
  [[nodiscard]] std::optional<LocalUser> find(std::string_view ticket) const;

  void take_back(const std::string& ticket) { tickets_.erase(ticket); }

 private:
  struct Entry {
    LocalUser user;
    TimePoint expires_at;
  };
  const Clock& clock_;
  std::map<std::string, Entry, std::less<>> tickets_;
};

}  // namespace accel::agent
