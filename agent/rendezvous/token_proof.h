// TokenProof: shows that a node, and the coordinator that it speaks to, know the token of a job, without sending it.
//
//   of a node        HMAC-SHA256(SHA-256(token), nonce || 0 || node_id || 0 || job_uuid)
//   of a coordinator HMAC-SHA256(SHA-256(token), "coordinator" || 0 || nonce || 0 || node_id)
//
// The nonce is the other side's and lives as long as the connection, so a proof that was overheard is worth nothing on
// another one. It has 32 bytes: so neither proof can serve as the other, whoever chose the nonce. The coordinator keeps the
// key, SHA-256 of the token; neither is ever logged or sent.
//
// Threads:  pure functions; read_token() reads a file.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include <accel/result.h>

namespace accel::agent {

inline constexpr std::size_t kNonceBytes = 32;

[[nodiscard]] std::string token_key(std::string_view token);

// HMAC-SHA256 of the words, with a zero between them.
[[nodiscard]] std::string prove_words(std::string_view key,
                                      std::initializer_list<std::string_view> words);

[[nodiscard]] std::string prove_token(std::string_view key,
                                      std::string_view nonce,
                                      std::string_view node_id,
                                      std::string_view job_uuid);

// In constant time.
[[nodiscard]] bool is_proof(std::string_view proof,
                            std::string_view key,
                            std::string_view nonce,
                            std::string_view node_id,
                            std::string_view job_uuid);

// The same of the coordinator; the nonce is the node's.
[[nodiscard]] std::string prove_coordinator(std::string_view key,
                                            std::string_view nonce,
                                            std::string_view node_id);

// In constant time.
[[nodiscard]] bool is_coordinator_proof(std::string_view proof,
                                        std::string_view key,
                                        std::string_view nonce,
                                        std::string_view node_id);

// The token in a file that nobody else may read, without white space around it.
// Errors  kAuthentication: missing, readable by others, shorter than 16 characters.
[[nodiscard]] Result<std::string> read_token(const std::string& path);

}  // namespace accel::agent
