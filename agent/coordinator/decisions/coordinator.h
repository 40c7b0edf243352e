// Coordinator: decides which nodes form the next generation of a job, with which ranks, and when it
// ends.
//
// A pure step function: no clock, no socket, no log, no random numbers. All it may know is in State
// and Event, all it wants done is in Actions; so every schedule can be replayed and explored
// (tests/unit/agent/coordinator/decisions/coordinator_search_test.cc, coordinator_schedules_test.cc).
//
//   phase        enters on                          leaves on                              to
//   PENDING      StartJob                           its record is written                  GATHERING
//                                                   the record cannot be written           (refused)
//   GATHERING    record written; end of STOPPING    last call over, or max_nodes joined,   PREPARING
//                with min_nodes left                or all expected, or the same as
//                                                   before; never while a back-off runs,
//                                                   within 500 ms of a loss, or while a
//                                                   node that is wanted is suspect
//                                                   join_limit over                        FAILED
//   PREPARING    Assign went to all members         all Ready, COMMIT is durable: Start    RUNNING
//                                                   a member lost, refused, failed or
//                                                   late: nothing was started; who is late
//                                                   is left out of this job                STOPPING
//   RUNNING      Start went to all members          a rank failed, a node lost, scale,
//                                                   drain, stop, finish skew               STOPPING
//                                                   every rank ended with 0                SUCCEEDED
//   STOPPING     Stop went to all members           each member: Stopped(g), or lost, or left out
//                                                   because it did not stop, and (hard fencing) its
//                                                   lease is over:
//                                                     may go on, min_nodes left            GATHERING
//                                                     may go on, fewer left                SUSPENDED
//                                                     no budget, or the same crash again   FAILED
//                                                     somebody asked for the end           CANCELLED
//   SUSPENDED    fewer than min_nodes are left      min_nodes are there again              GATHERING
//                                                   regroup_timeout over                   FAILED
//
// A generation has workers only after its COMMIT: a loss before that costs no budget and needs no
// lease. Losses while STOPPING or GATHERING go into the change that is under way.
//
// Nodes:   live --2.5 s without a beat, or connection lost--> suspect --4.5 s, or 200 ms after the
//          connection (its readopt_window while it runs workers)--> lost --Hello--> live.
//          A lost session is told Fenced whenever it speaks again.
//
// Threads:  a pure function; State belongs to one thread at a time.
// Cost:     O(log nodes) for a message, O(nodes) for Tick and for a change of generation.
// Source:   docs/internals/rendezvous.md.
#pragma once

#include <utility>
#include <vector>

#include "agent/coordinator/messages/actions.h"
#include "agent/coordinator/messages/events.h"
#include "agent/coordinator/state/state.h"

namespace accel::agent {

struct Step {
  State state;
  Actions actions;  // carried out in this order
};

[[nodiscard]] Step step(State state, const Event& event);

// When step() wants a Tick at the latest, always after the last one; TimePoint::max(): not before the
// next event. It may be past already, because other events do not look at the clock: tick at once then.
// Cost: O(nodes); a Tick every 100 ms serves as well.
[[nodiscard]] TimePoint next_wake(const State& state);

// A coordinator that knows nothing: `epoch` must be higher than any before it. `actions` writes the
// epoch down: let that be durable before the first agent is heard.
[[nodiscard]] Step found(std::uint64_t epoch, CoordinatorConfig config, TimePoint now);

// One that takes over from what another one wrote. Jobs keep running; nodes have
// config.rebuild_window to say Hello again.
[[nodiscard]] Result<Step> recover(const std::vector<Record>& records,
                                   std::uint64_t epoch,
                                   CoordinatorConfig config,
                                   TimePoint now);

// The leader epoch in `records`; 0 when there is none.
[[nodiscard]] std::uint64_t recorded_epoch(const std::vector<Record>& records);

// One member of a job's generation, for those that want to know them.
struct MemberView {
  NodeId node_id;
  std::string address;
  int node_index = 0;
  int first_rank = 0;
  int num_ranks = 0;
};

// Members `offset` .. `offset + limit` of the job's present generation; empty past the end.
[[nodiscard]] std::vector<MemberView> members_page(const State& state,
                                                   const JobUuid& job,
                                                   std::size_t offset,
                                                   std::size_t limit);

}  // namespace accel::agent
