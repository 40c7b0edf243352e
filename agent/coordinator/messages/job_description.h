// JobDescription: what a job asks of the cluster, as far as the coordinator must know it.
//
// What the workers run (argv, environment, logs, limits) is opaque here: `payload` is carried to
// every member unread, in one buffer that all Assigns share.
//
// Threads:  plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::agent {

using supervisor::Milliseconds;

enum class ScaleUp {
  kParked,  // nodes that come late wait for the next restart, or for `accel scale`
  kAuto,    // a running job is stopped and formed anew with them, without cost to its budget
};

// How sure it must be that an old generation is gone before the next one starts.
enum class Fencing {
  kSoft,  // commits of the old generation are refused, its workers may run on for a while
  kHard,  // its workers are dead: stopped, or killed by their own agent when the lease ran out
};

struct FencePolicy {
  Fencing fencing = Fencing::kSoft;
  Milliseconds lease{10'000};  // counted by the agent, from the sending of an acked beat
  Milliseconds control_loss_grace{60'000};  // soft: how long an agent trains on without coordinator
};

struct JobRestartPolicy {
  supervisor::RestartPolicy budget;       // of the whole job, wherever its ranks fail
  int max_same_crash = 3;                 // same cause, rank and step so often in a row: FAILED
  Milliseconds regroup_timeout{600'000};  // below min_nodes for so long: FAILED
};

struct JobDescription {
  std::string job_id;    // the user's name for it, [A-Za-z0-9_.-]{1,64}
  std::string job_uuid;  // never used twice
  std::string user;      // vouched for by the agent that took the job

  int min_nodes = 1;
  int max_nodes = 1;                        // at least min_nodes
  int procs_per_node = 1;                   // of a node whose Join names no slots
  std::vector<std::string> expected_hosts;  // complete when all are in; empty: not known beforehand
  bool recruits = false;                    // nodes are invited; else they come by themselves

  Milliseconds join_limit{600'000};     // from the request to the first generation's completion
  Milliseconds last_call{3'000};        // wait for more nodes once min_nodes are there
  Milliseconds prepare_limit{120'000};  // from Assign to the last Ready
  std::optional<Milliseconds>
      finish_skew;  // from the first rank's end to the last's; none: for ever
  ScaleUp scale_up = ScaleUp::kParked;
  JobRestartPolicy restart;
  supervisor::StopPolicy stop;
  FencePolicy fence;

  std::shared_ptr<const std::string> payload;  // for the agents; the coordinator does not read it
};

}  // namespace accel::agent
