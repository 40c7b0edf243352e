// Messages: what agents and the coordinator say to each other, before any encoding.
//
// The session layer converts them from and to proto/accel/v1; nothing here knows gRPC.
//
// Delivery. The coordinator is built for links that lose, repeat and reorder:
//   agent -> coordinator   every body but Beat takes the next seq of its session and is sent again
//                          until BeatAck.acked_seq covers it. Beats are never repeated: they carry the
//                          seq last given and are ordered by mono_ns.
//   coordinator -> agent   nothing is repeated blindly. A Beat says where its node stands in each job,
//                          and whoever stands behind is told again. So each body must be idempotent:
//                          a second Assign of a prepared generation answers Ready again, a second Stop
//                          of a stopped one answers Stopped again.
//   both                   what carries a lower leader epoch, or a lower generation of its job, is
//                          dropped and counted; a higher epoch means that the receiver is outdated.
// agent/coordinator/member/member.h is the agent's half as a pure step function.
//
// Generation: Fence.generation is that of the job which the body names; 0 where it names none.
// Threads:  plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "agent/coordinator/messages/job_description.h"
#include "runtime/clock.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::agent {

// The versions of this protocol that this build speaks. 2: a spec may be named by its digest (job_specs.h).
inline constexpr std::uint32_t kProtocolMin = 1;
inline constexpr std::uint32_t kProtocolMax = 2;

// No leader has a higher epoch: a journal counts its coordinators, and an etcd that is written to 30,000 times a second has
// not so many revisions in 300 years. Whoever names one is wrong, or means harm.
inline constexpr std::uint64_t kHighestEpoch = std::uint64_t{1} << 48;

using SessionId = std::string;  // drawn by the agent at its start: one per life of an agent process
using NodeId = std::string;
using JobUuid = std::string;

struct Fence {
  std::uint64_t leader_epoch = 0;  // agents: the highest they know, 0 before the first Welcome
  std::uint64_t generation = 0;
  SessionId session_id;
  std::uint64_t seq = 0;
};

// Where a node stands in one job.
enum class MemberPhase {
  kNone,       // nothing of this job is here
  kJoined,     // wants to take part
  kPreparing,  // got Assign: checks and parked workers are under way
  kPrepared,   // Ready was sent
  kRunning,    // got Start
  kDone,       // every rank of this node ended with 0
  kFailed,     // a rank failed; the others were stopped or are being stopped
  kDraining,   // got Stop
  kStopped,    // nothing of this generation is left here
};

// Something of the generation is here, or is being put up or taken down.
[[nodiscard]] inline bool is_active(MemberPhase phase) {
  return phase >= MemberPhase::kPreparing && phase <= MemberPhase::kDraining;
}

// ---- from agents ----

struct NodeInfo {
  NodeId node_id;       // stays over reboots
  std::string boot_id;  // changes with each boot: its old workers are gone for certain
  std::string hostname;
  std::vector<std::string> addresses;  // how other nodes reach it, best first
  int slots = 1;
  std::string endpoint;  // where its agent listens for other nodes; empty: nowhere
  std::string rack;      // or link domain; empty when not known
  // How long the agent may be gone, after its connection broke, before its node counts as lost:
  // its shims hold the workers meanwhile. 0: as long as any broken connection (200 ms).
  Milliseconds readopt_window{0};
};

struct LocalJob {
  JobUuid job_uuid;
  std::uint64_t leader_epoch = 0;  // of the Assign
  std::uint64_t generation = 0;
  MemberPhase phase = MemberPhase::kNone;
};

// First message of a connection. The same session_id again means the same agent process.
struct Hello {
  std::uint32_t protocol_min = kProtocolMin;
  std::uint32_t protocol_max = kProtocolMax;
  std::string build;
  NodeInfo node;
  std::vector<LocalJob> running;  // the truth about what is here, however it came
};

struct Join {
  JobUuid job_uuid;
  bool spare = false;        // only to replace a lost node
  int slots = 0;             // 0: JobDescription::procs_per_node
  int preferred_index = -1;  // the node index it would like (a scheduler's order); -1: any
  // What it knows by coordinators before, for one that has no record of the job.
  std::uint64_t generation = 0;  // the highest that it heard of
  int restarts = 0;              // used up, should the coordinator be gone that it heard last
  int out_of_memory = 0;         // restarts after running out of memory: not in `restarts`
};

struct FailedCheck {
  std::string name;
  std::string detail;
  bool is_of_job = false;  // the job's own: it says nothing about the node for other jobs
};

// The workers of Fence.generation are parked: spawned as far as they may, waiting for Start.
struct Ready {
  JobUuid job_uuid;
  std::string store_endpoint;              // node index 0: where its store listens, bound already
  std::vector<FailedCheck> failed_checks;  // not empty: not ready, and why
  Milliseconds took{0};
};

struct RankProgress {
  std::int64_t step = -1;  // the last one reported; -1: none, or the rank has ended
  Milliseconds silent_for{0};
};

struct JobBeat {
  JobUuid job_uuid;
  std::uint64_t generation = 0;
  MemberPhase phase = MemberPhase::kNone;
  std::int64_t min_step = -1;  // over its ranks; -1: none was reported
  std::int64_t max_step = -1;
  std::vector<int> stalled_ranks;     // global; first the one that stopped first
  Milliseconds last_progress_age{0};  // since any of its ranks reported
  std::vector<RankProgress> ranks;    // by local rank
};

struct Beat {
  std::vector<JobBeat> jobs;  // all that are here, however old
  float load = 0;
  std::uint64_t mem_free_bytes = 0;
  int slots_taken = 0;  // by jobs that run on this node alone
};

enum class WorkerPhase { kStarted, kExited };

struct WorkerEvent {
  JobUuid job_uuid;
  WorkerPhase phase = WorkerPhase::kStarted;
  int global_rank = 0;
  int local_rank = 0;
  std::int64_t step = -1;                      // last one reported; -1: none
  std::optional<supervisor::WorkerExit> exit;  // kExited; seen_at is the agent's monotonic clock
};

// Nothing of Fence.generation is left here, or (unkillable) nothing that could still do anything.
struct Stopped {
  JobUuid job_uuid;
  int num_unkillable = 0;
};

// Goes of its own will; not a loss. An empty job_uuid: the whole node, out of every job.
struct Leave {
  JobUuid job_uuid;
  std::string reason;
};

enum class AlarmKind { kUnhealthy, kUnkillable, kDeviceLost };

struct NodeAlarm {
  AlarmKind kind = AlarmKind::kUnhealthy;
  JobUuid job_uuid;  // empty: concerns the node
  std::string text;
};

// The answer to Invite by a node that may not run the job, or whose user does not exist there.
struct Decline {
  JobUuid job_uuid;
  std::string reason;
};

struct AgentMessage {
  Fence fence;
  std::chrono::nanoseconds mono{0};  // the agent's CLOCK_MONOTONIC when it was sent
  std::variant<Hello, Join, Ready, Beat, WorkerEvent, Stopped, Leave, NodeAlarm, Decline> body;
};

// ---- to agents ----

struct Welcome {
  std::uint32_t protocol = kProtocolMax;  // the one both speak
  Milliseconds beat_every{1'000};
};

struct Assign {
  std::shared_ptr<const JobDescription> job;
  int node_index = 0;
  int first_rank = 0;
  int num_ranks = 1;  // here
  int world_size = 1;
  int num_nodes = 1;
  std::string first_address;  // of node index 0, which hosts the store
  int restart_count = 0;      // of every kind: what the workers are told
  int out_of_memory = 0;      // of restart_count
};

// Requires: the receiver is prepared for exactly this (assigned_epoch, Fence.generation).
struct Start {
  JobUuid job_uuid;
  std::uint64_t assigned_epoch = 0;
  std::string store_endpoint;
};

enum class StopReason {
  kAborted,
  kFailure,
  kNodeLost,
  kScale,
  kDrain,
  kCancelled,
  kFinished,
  kStale
};

struct Stop {
  JobUuid job_uuid;
  Milliseconds grace{30'000};
  StopReason reason = StopReason::kFailure;
  bool kill = false;  // SIGKILL now
};

enum class NoticeKind { kParked, kPreempt, kSucceeded, kFailed, kCancelled };

// Whether the job is over.
[[nodiscard]] inline bool ends_job(NoticeKind kind) {
  return kind == NoticeKind::kSucceeded || kind == NoticeKind::kFailed ||
         kind == NoticeKind::kCancelled;
}

struct Notice {
  JobUuid job_uuid;
  NoticeKind kind = NoticeKind::kParked;
  std::string text;
};

struct BeatAck {
  std::chrono::nanoseconds mono_echo{
      0};                       // AgentMessage::mono of the beat; the lease runs from there
  std::uint64_t acked_seq = 0;  // this and all before it arrived
};

enum class FenceReason {
  kUnknownSession,  // say Hello first
  kDeclaredLost,    // others took over: kill what runs, then come back with a new session
  kReplaced,        // another agent of the same node took its place
};

// Kill every worker, forget every job, begin a new session (kUnknownSession: only say Hello again).
struct Fenced {
  FenceReason reason = FenceReason::kUnknownSession;
};

struct Quarantine {
  Milliseconds remaining{0};  // 0: over
  std::string reason;
};

enum class RefusalCode {
  kAlreadyExists,       // a live node has this id
  kFailedPrecondition,  // no common protocol version
  kResourceExhausted,   // the journal's disk is full: no new jobs
};

// The connection is closed after it.
struct Refused {
  RefusalCode code = RefusalCode::kAlreadyExists;
  std::string message;
};

// Asks a node to take part in a job that did not come from a node: it answers Join or Decline, or
// nothing, when it takes no work at present. Sent again until it does.
struct Invite {
  std::shared_ptr<const JobDescription> job;
};

struct CoordinatorMessage {
  Fence fence;
  std::variant<Welcome, Assign, Start, Stop, Notice, BeatAck, Fenced, Quarantine, Refused, Invite>
      body;
};

}  // namespace accel::agent
