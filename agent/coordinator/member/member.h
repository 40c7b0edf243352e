// Member: an agent's half of the rendezvous, as a pure step function like the coordinator's.
//
// The agent feeds it what comes from the coordinator and what its shims report, and carries out the
// actions. It decides nothing about jobs; it keeps the promises that the coordinator builds on:
//   - at most one generation of a job has anything here; a newer Assign waits until the old is gone
//   - workers run only after Start of exactly the generation that is parked
//   - what it said is said again until acked, with the same seq
//   - the lease runs from the *sending* of the last acked beat. Hard fencing: at its end the workers
//     are killed, by the shim too, which is told of every renewal: it stands in for an agent that is
//     stopped or dead. Soft: at the end of control_loss_grace.
//   - Fenced: everything is killed, then a new session says Hello
//
//   per job: kNone -> kJoined -> kPreparing -> kPrepared -> kRunning -> kDone | kFailed
//            any of them -> kDraining -> kStopped -> kJoined (it stays joined until it leaves)
//
// Threads:  a pure function; MemberState belongs to one thread at a time.
// Source:   docs/internals/rendezvous.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/coordinator/messages/messages.h"
#include "runtime/clock.h"

namespace accel::agent {

// ---- what happens ----

struct Connected {};
struct Disconnected {};

struct FromCoordinator {
  CoordinatorMessage message;
};

// Somebody here wants this node in the job. Repeated: the latest wish holds.
struct WantJob {
  Join join;
};

// This node goes out of the job, or (empty job_uuid) out of service.
struct WantLeave {
  JobUuid job_uuid;
  std::string reason;
};

// The shim's workers of this generation are parked, or `failed_checks` says why not.
struct WorkersParked {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  std::string store_endpoint;
  std::vector<FailedCheck> failed_checks;
  Milliseconds took{0};
};

struct WorkerExited {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  std::int64_t step = -1;
  supervisor::WorkerExit exit;
};

// Every worker of this generation is reaped (or cannot be killed).
struct WorkersGone {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  int num_unkillable = 0;
  bool is_proved =
      true;  // false: something may be left that the node cannot see; the coordinator is not told
};

struct StepsMade {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  std::int64_t min_step = -1;
  std::int64_t max_step = -1;
  std::vector<int> stalled_ranks;
  Milliseconds last_progress_age{0};
  std::vector<RankProgress> ranks;
};

// The answer to ConsiderJob by a node that does not take part.
struct DeclineJob {
  JobUuid job_uuid;
  std::string reason;
};

// Found at the agent's start, in shims that outlived the one before it.
struct Adopted {
  std::shared_ptr<const JobDescription> job;
  Join join;
  LocalJob local;
  int num_ranks = 1;
  // When the last acked beat before this agent's start was sent (CLOCK_MONOTONIC). Hard fencing: the
  // shim's Snapshot::lease_until less the lease. Soft: nobody knows; now, so that control_loss_grace
  // begins anew.
  TimePoint acked_at{};
};

struct MemberTick {};

struct MemberEvent {
  TimePoint at;               // CLOCK_MONOTONIC of this machine
  std::string fresh_session;  // drawn by the caller; taken only when a new session begins
  std::variant<MemberTick,
               Connected,
               Disconnected,
               FromCoordinator,
               WantJob,
               DeclineJob,
               WantLeave,
               WorkersParked,
               WorkerExited,
               WorkersGone,
               StepsMade,
               Adopted>
      what;
};

// ---- what is to be done ----

struct SendUp {
  AgentMessage message;
};

// Check the node and spawn the workers as far as they may go without Start.
struct ParkWorkers {
  std::uint64_t generation = 0;
  std::uint64_t assigned_epoch = 0;
  Assign assign;
  std::optional<TimePoint>
      lease_until;  // hard fencing: the shim kills at that time, unless renewed
};

// Hard fencing: the workers of this generation may run on.
struct RenewLease {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  TimePoint until{};
};

struct ReleaseWorkers {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  std::string store_endpoint;
};

// Answered by WorkersGone, also when nothing was left.
struct StopWorkers {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  Milliseconds grace{0};
  StopReason reason = StopReason::kFailure;
  bool kill = false;
};

// The coordinator asks this node to take part. Answered by WantJob or DeclineJob; or not at all, and
// it asks again.
struct ConsiderJob {
  std::shared_ptr<const JobDescription> job;
};

// For the workers' notice board, the console, `accel status`.
struct TellJob {
  Notice notice;
};

struct TellQuarantine {
  Quarantine quarantine;
};

// The connection is of no use (refused, outdated coordinator): close it and connect anew, later.
struct Reconnect {
  std::string reason;
};

using MemberAction = std::variant<SendUp,
                                  ParkWorkers,
                                  RenewLease,
                                  ReleaseWorkers,
                                  StopWorkers,
                                  TellJob,
                                  TellQuarantine,
                                  Reconnect,
                                  ConsiderJob>;

// ---- what it knows ----

struct LocalMembership {
  Join join;
  bool wants_in = true;                       // false after WantLeave
  std::shared_ptr<const JobDescription> job;  // since the first Assign
  std::uint64_t assigned_epoch = 0;
  std::uint64_t generation = 0;  // of what is here, or was here last
  MemberPhase phase = MemberPhase::kNone;
  int num_ranks = 0;
  int num_done = 0;
  int restarts_before = 0;               // this generation; but those after running out of memory
  Milliseconds stop_grace{0};            // kDraining: as it was told last
  StepsMade steps;                       // of this generation, as they were reported last
  std::optional<ParkWorkers> next;       // waits until the old generation is gone
  std::uint64_t highest_generation = 0;  // seen in any message about this job
};

struct MemberState {
  NodeInfo node;
  std::string build;
  SessionId session_id;
  std::uint64_t epoch = 0;  // highest seen
  bool is_connected = false;
  bool is_welcome = false;  // Hello was answered on this connection
  std::uint64_t last_seq = 0;
  std::deque<AgentMessage> unacked;
  Milliseconds beat_every{1'000};
  TimePoint next_beat{};
  TimePoint resend_at{};
  TimePoint hello_at{};  // the first Hello that is not answered yet
  TimePoint acked_at{};  // when the last acked beat was sent: the lease's start
  std::map<JobUuid, LocalMembership> jobs;
  int slots_taken = 0;        // by jobs that run on this node alone, for the next beat
  std::uint64_t dropped = 0;  // messages of a lower epoch, another session or an older generation
};

struct MemberStep {
  MemberState state;
  std::vector<MemberAction> actions;  // carried out in this order
};

[[nodiscard]] MemberStep step(MemberState state, const MemberEvent& event);

// When step() wants a MemberTick at the latest.
[[nodiscard]] TimePoint next_wake(const MemberState& state);

}  // namespace accel::agent
