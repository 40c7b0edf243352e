// How long an agent waits before it connects to the coordinator again.
//
// After an outage of the coordinator all agents come back, and what they ask of it first is the dearest of all: a
// connection, a TLS handshake, a Hello. So they shall come spread out, at most 5,000 a second:
//
//   pause after the k-th loss in a row = 0.5 .. 1, drawn, times min(50 ms * 2^(k-1), longest)
//   longest = max(1 s, 1.5 * nodes / 5,000 a second)
//
// Once the pauses have grown to the longest, N nodes come at N / (0.75 * longest) = 4,444 a second at most, from the moment
// on at which the coordinator is back. The first pause stays below the 200 ms after which a node whose connection alone
// broke counts as lost.
//
// Threads:  a pure function.
// Source:   fault 54 of docs/reference/faults.md.
#pragma once

#include <chrono>

namespace accel::agent {

struct ReconnectFacts {
  int num_losses = 0;  // in a row, this one too
  int num_nodes = 0;   // of the cluster, as the coordinator said last; 0: it has not
  double chance = 0;   // drawn, in [0, 1)
};

[[nodiscard]] std::chrono::milliseconds reconnect_pause(const ReconnectFacts& facts);

}  // namespace accel::agent
