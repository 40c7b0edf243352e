#include "agent/access/ticket_book.h"

#include <cerrno>
#include <cstdlib>

#include <openssl/crypto.h>
#include <sys/random.h>

namespace accel::agent {

std::string random_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t done = 0; done < size;) {
    const ssize_t got = ::getrandom(bytes.data() + done, size - done, 0);
    if (got > 0) done += static_cast<std::size_t>(got);
    if (got < 0 && errno != EINTR)
      std::abort();  // a kernel without randomness: no secret can be made
  }
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const unsigned char byte : bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::optional<std::string> TicketBook::issue(const LocalUser& user) {
  const TimePoint now = clock_.now();
  std::erase_if(tickets_, [&](const auto& entry) { return entry.second.expires_at <= now; });
  if (tickets_.size() >= kMaxTickets) return std::nullopt;
  std::string ticket = to_hex(random_bytes(32));
  tickets_[ticket] = {user, now + kLifetime};
  return ticket;
}

std::optional<LocalUser> TicketBook::find(std::string_view ticket) const {
  // Looked up by comparison with every ticket: a tree would tell by its time how much of a guess is right.
  const Entry* found = nullptr;
  for (const auto& [known, entry] : tickets_) {
    if (equal_in_constant_time(known, ticket)) found = &entry;
  }
  if (found == nullptr || found->expires_at <= clock_.now()) return std::nullopt;
  return found->user;
}

}  // namespace accel::agent
