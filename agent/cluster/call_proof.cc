#include "agent/cluster/call_proof.h"

#include <cstdint>
#include <utility>

#include "agent/access/ticket_book.h"
#include "agent/rendezvous/token_proof.h"
#include "runtime/supervisor/kernel/tcp_endpoint.h"
#include "runtime/text/endpoint_text.h"
#include "runtime/text/number_text.h"

namespace accel::agent {
namespace {

constexpr std::string_view kNoPort = ":0";

std::string proof_of_call(std::string_view key, const CallProof& call) {
  return prove_words(key, {"call", call.nonce, call.node, call.to, call.sent_at});
}

Error not_believed(const std::string& node, const std::string& why) {
  return Error(ErrorCode::kAuthentication,
               "node '" + node + "' did not prove the token of the cluster: " + why,
               "give both agents the same token_file");
}

}  // namespace

std::string call_key(std::string_view key) {
  return key.empty() ? std::string() : prove_words(key, {"accel.v1.Cluster"});
}

CallProof prove_call(std::string_view key,
                     std::string_view node,
                     std::string_view to,
                     TimePoint now) {
  CallProof call = {.node = std::string(node),
                    .nonce = random_bytes(kNonceBytes),
                    .to = std::string(to),
                    .sent_at = std::to_string(now.time_since_epoch().count()),
                    .proof = {}};
  call.proof = proof_of_call(key, call);
  return call;
}

std::string prove_answer(std::string_view key, std::string_view nonce, std::string_view node) {
  return prove_words(key, {"answer", nonce, node});
}

bool is_answer_proof(std::string_view proof,
                     std::string_view key,
                     std::string_view nonce,
                     std::string_view node) {
  return equal_in_constant_time(proof, prove_answer(key, nonce, node));
}

std::string call_address(const std::string& endpoint) {
  const auto parsed = supervisor::parse_tcp_endpoint(endpoint);
  return parsed ? endpoint_text(parsed->address().to_string(), parsed->port()) : std::string();
}

CallNonces::CallNonces(std::string key, const std::string& own, TimePoint begun_at)
    : key_(std::move(key)), own_(call_address(own)), begun_at_(begun_at) {}

bool CallNonces::is_own(const std::string& to) const {
  if (!own_.ends_with(kNoPort)) return to == own_;
  const std::size_t colon = to.rfind(':');
  return colon != std::string::npos &&
         to.substr(0, colon) == own_.substr(0, own_.size() - kNoPort.size());
}

Result<void> CallNonces::admit(const CallProof& call, TimePoint now) {
  if (call.nonce.size() != kNonceBytes ||
      !equal_in_constant_time(call.proof, proof_of_call(key_, call)))
    return not_believed(call.node, "its proof is none");
  if (!is_own(call.to))
    return not_believed(call.node, "its proof is for " + call.to + ", this is " + own_);
  const auto moment = number_of<std::int64_t>(call.sent_at);
  const TimePoint sent_at{std::chrono::nanoseconds(moment.value_or(0))};
  if (!moment || sent_at > now || now - sent_at > kWindow)
    return not_believed(call.node, "its proof is not of the last 30 s");
  if (sent_at < begun_at_)
    return Error(ErrorCode::kCoordinatorLost, "the call is older than this agent", "ask again");
  const std::lock_guard lock(mutex_);
  while (!by_moment_.empty() && now - by_moment_.begin()->first > kWindow) {
    heard_.erase(by_moment_.begin()->second);
    by_moment_.erase(by_moment_.begin());
  }
  if (heard_.size() >= kMost)
    return Error(ErrorCode::kCoordinatorLost,
                 "this agent has " + std::to_string(kMost) + " calls of the last 30 s",
                 "ask again in some seconds");
  if (!heard_.insert(call.nonce).second)
    return not_believed(call.node, "its proof was heard before");
  by_moment_.emplace(sent_at, call.nonce);
  return {};
}

}  // namespace accel::agent
