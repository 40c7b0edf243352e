// CallProof: without TLS, a call between agents and the answer to it each show that they know the token of the cluster.
//
//   caller                                                agent at `to`
//   nonce, `to`, moment, HMAC("call", all of them) -->    never heard this nonce, is `to`, the moment is near
//                   checks it   <-- HMAC("answer", nonce) answer
//
// Both have the key HMAC-SHA256(SHA-256(token), "accel.v1.Cluster"), so no proof of a session can serve here, nor one of these
// there. A process that took the address of an agent hears proofs for that address alone, and the agent that begins there later
// takes none from before its beginning; whoever replays to the same agent names a nonce that was heard.
//
// Why a moment and no challenge of the server: it costs no call and no state at the caller, and one set of nonces at the server.
// Both are on one machine (`insecure` is loopback alone), so they have one monotonic clock.
//
// Threads:  pure functions; CallNonces from any thread.
// Source:   docs/admin/security.md, "Users of jobs over several nodes".
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <string_view>

#include <accel/result.h>

#include "runtime/clock.h"

namespace accel::agent {

// What a call carries as metadata.
struct CallProof {
  std::string node;
  std::string nonce;    // kNonceBytes, drawn for this call
  std::string to;       // IP:port
  std::string sent_at;  // nanoseconds of the monotonic clock, in decimal
  std::string proof;
};

// key  of token_key(). Empty: there is no token.
[[nodiscard]] std::string call_key(std::string_view key);

// key  of call_key().
[[nodiscard]] CallProof prove_call(std::string_view key,
                                   std::string_view node,
                                   std::string_view to,
                                   TimePoint now);
[[nodiscard]] std::string prove_answer(std::string_view key,
                                       std::string_view nonce,
                                       std::string_view node);
[[nodiscard]] bool is_answer_proof(std::string_view proof,
                                   std::string_view key,
                                   std::string_view nonce,
                                   std::string_view node);

// The address of an agent as both ends write it: IP:port; empty: it is none.
[[nodiscard]] std::string call_address(const std::string& endpoint);

// What one agent has heard.
class CallNonces {
 public:
  static constexpr std::chrono::seconds kWindow{30};
  static constexpr std::size_t kMost = 65'536;  // of those who know the token

  // own  `listen` of the configuration; with port 0 any port is its own. begun_at  nothing that was sent before is taken.
  CallNonces(std::string key, const std::string& own, TimePoint begun_at);

  // Errors  kAuthentication: no proof of the token, for another agent, out of time or heard before. kCoordinatorLost: it was
  // sent before this agent began, or too many came at once: ask again.
  [[nodiscard]] Result<void> admit(const CallProof& call, TimePoint now);

 private:
  [[nodiscard]] bool is_own(const std::string& to) const;

  const std::string key_;
  const std::string own_;
  const TimePoint begun_at_;
  std::mutex mutex_;
  std::set<std::string> heard_;
  std::multimap<TimePoint, std::string> by_moment_;
};

}  // namespace accel::agent
