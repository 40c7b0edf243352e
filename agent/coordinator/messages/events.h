// Events: everything the coordinator may learn, and the only way in which it does.
//
// Threads:  plain values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>

#include "agent/coordinator/messages/messages.h"
#include "runtime/clock.h"

namespace accel::agent {

// One connection of the transport; a number is never used twice in the life of a coordinator.
using ConnectionId = std::uint64_t;

struct FromAgent {
  ConnectionId connection = 0;
  AgentMessage message;
};

// Reset, end of file, or any error of the connection.
struct ConnectionLost {
  ConnectionId connection = 0;
};

// ---- asked for by Control, already authorized ----

struct StartJob {
  std::string request_id;  // repeated: answered as the first time
  JobDescription job;
  bool is_of_operator = false;  // has room where others have none
};

struct StopJob {
  JobUuid job_uuid;
  bool kill = false;
  std::optional<Milliseconds> grace = {};  // at most; none: the job's
  std::string request_id = {};             // empty: nobody waits for the answer
};

struct ScaleJob {
  JobUuid job_uuid;
  int min_nodes = 1;
  int max_nodes = 1;
};

struct DrainNode {
  NodeId node_id;
  std::string reason;
};

struct UndrainNode {
  NodeId node_id;
};

// The scheduler or an operator vouches that the node is off: its workers are gone for certain.
struct NodeDown {
  NodeId node_id;
};

// ---- from the one who runs the coordinator ----

// The answer to Persist. `ok` only when the record is as durable as was asked.
struct Persisted {
  std::uint64_t ticket = 0;
  bool ok = true;
};

// Time went by. At least every 100 ms, or at next_wake().
struct Tick {};

struct Event {
  TimePoint at;       // CLOCK_MONOTONIC of the coordinator's machine; never smaller than before
  double chance = 0;  // drawn from [0, 1) by the caller: jitter of back-offs
  std::variant<Tick,
               FromAgent,
               ConnectionLost,
               StartJob,
               StopJob,
               ScaleJob,
               DrainNode,
               UndrainNode,
               NodeDown,
               Persisted>
      what;
};

}  // namespace accel::agent
