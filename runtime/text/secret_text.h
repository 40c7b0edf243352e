// SecretText: whether a caller has named a secret. Where OpenSSL is linked, CRYPTO_memcmp is taken (agent/access/ticket_book.h).
//
// Threads:  pure.
#pragma once

#include <algorithm>
#include <cstddef>
#include <string_view>

namespace accel {

// Takes as long for any texts of the same length.
[[nodiscard]] inline bool is_same_secret(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

}  // namespace accel
