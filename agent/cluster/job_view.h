// JobView: a job of many nodes as `accel status` shows it.
//
// Threads:  pure functions.
#pragma once

#include "accel/v1/control.pb.h"
#include "agent/coordinator/state/state.h"

namespace accel::agent {

// `uid` is not filled: each agent knows its own number for `user`.
[[nodiscard]] v1::Job view_of(const State& state, const Job& job);

// The parts of it: without `argv` and `nodes`, and one of these.
[[nodiscard]] v1::Job head_of(const Job& job);
[[nodiscard]] v1::JobNode node_of(const State& state, const Member& member);
// Whether its members have seats now; else the view has no nodes.
[[nodiscard]] bool has_seats(JobPhase phase);

// What is booked until now.
[[nodiscard]] v1::Ledger view_of(const LedgerState& ledger, TimePoint now);

// What a command that follows the job ends with: as for a job on one node.
[[nodiscard]] int exit_code_of(const Job& job);

}  // namespace accel::agent
