// TokenFunctions: what libaccel_cluster.so knows about the token of a job: a launch without one needs no cryptography.
//
// Threads:  pure functions, but read(), which reads a file.
#pragma once

#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel::launcher {

struct TokenFunctions {
  // The token in a file of mode 0600, without white space around it.
  // Errors  kAuthentication: missing, readable by others, shorter than 16 characters.
  Result<std::string> (*read)(const std::string& path);
  // HMAC-SHA256(SHA-256(token), session || 0 || key || 0 || text), 32 bytes.
  std::string (*prove)(std::string_view token,
                       std::string_view session,
                       std::string_view key,
                       std::string_view text);
};

// The library's function that gives a const TokenFunctions*.
inline constexpr const char* kTokenEntry = "accel_cluster_token_functions";

}  // namespace accel::launcher
