// The token of a job for launchers that link no cryptography; see launcher/cluster_entry/token_functions.h.

#include "agent/rendezvous/token_proof.h"
#include "launcher/cluster/entry.h"

namespace accel::cluster {
namespace {

std::string prove(std::string_view token,
                  std::string_view session,
                  std::string_view key,
                  std::string_view text) {
  return agent::prove_token(agent::token_key(token), session, key, text);
}

}  // namespace
}  // namespace accel::cluster

extern "C" __attribute__((visibility("default"))) const accel::launcher::TokenFunctions*
accel_cluster_token_functions() {
  static constexpr accel::launcher::TokenFunctions kFunctions = {.read = accel::agent::read_token,
                                                                 .prove = accel::cluster::prove};
  return &kFunctions;
}
