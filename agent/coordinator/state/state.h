// State: everything the coordinator knows. Values only; see coordinator.h for what they mean.
//
// Threads:  belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/coordinator/messages/events.h"
#include "agent/coordinator/messages/messages.h"
#include "runtime/supervisor/metrics/ledger.h"
#include "runtime/supervisor/stop/restart_policy.h"
#include "runtime/supervisor/watch/step_comparison.h"

namespace accel::agent {

using supervisor::Account;
using supervisor::LedgerState;

struct CoordinatorConfig {
  Milliseconds beat_every{1'000};
  Milliseconds suspect_after{2'500};
  Milliseconds lost_after{4'500};
  Milliseconds reconnect_window{200};  // from a broken connection to lost
  Milliseconds coalesce{500};          // losses so close together are one change
  Milliseconds rebuild_window{5'000};  // after a take-over: for nodes to say Hello again
  Milliseconds name_missing_after{10'000};
  Milliseconds resend_after{1'000};  // to a node whose beats stand behind
  Milliseconds journal_retry{5'000};
  // Flapping: so many losses within the window put a node aside; each time twice as long.
  int flap_losses = 3;
  Milliseconds flap_window{600'000};
  Milliseconds quarantine_first{600'000};
  Milliseconds quarantine_most{86'400'000};
  int max_jobs = 1'000;
  int max_jobs_each = 500;             // of one user
  int max_jobs_kept = 125;             // of max_jobs, for what operators submit
  Milliseconds keep_ended{3'600'000};  // how long an ended job can be asked about
  int keep_ended_jobs = 1'000;  // so many of them; then the oldest of the user who has most goes
};

enum class Liveness { kLive, kSuspect, kLost };

// One life of an agent process.
struct Session {
  SessionId id;
  ConnectionId connection = 0;
  bool is_connected = false;
  TimePoint connection_lost_at;
  TimePoint heard_at;                      // last beat, or Hello
  std::chrono::nanoseconds last_mono{-1};  // of the last beat: older ones are dropped
  std::uint64_t acked_seq = 0;             // all up to it arrived, in order
  std::uint64_t sent_seq = 0;
  // Least (coordinator's clock - agent's clock) seen: what turns its times into ours.
  std::optional<std::chrono::nanoseconds> clock_offset;
};

struct QuarantineState {
  TimePoint until{};
  Milliseconds ttl{0};  // of the last one; 0: never was
  std::string reason;
};

struct Node {
  NodeInfo info;
  Liveness liveness = Liveness::kLost;
  Session session;
  TimePoint lost_not_before{};            // after a take-over: until then it may say Hello again
  bool has_left = false;                  // said Leave: its end is no loss
  std::map<JobUuid, std::uint64_t> busy;  // generations not over there, as it says itself
  bool is_drained = false;
  std::string drain_reason;
  QuarantineState quarantine;
  std::deque<TimePoint> losses;  // within flap_window
  int slots_taken = 0;           // by jobs of its own, as its last beat says
};

enum class JobPhase {
  kPending,
  kGathering,
  kPreparing,
  kRunning,
  kStopping,
  kSuspended,
  kSucceeded,
  kFailed,
  kCancelled,
};

[[nodiscard]] std::string_view name_of(JobPhase phase);

[[nodiscard]] constexpr bool is_terminal(JobPhase phase) noexcept {
  return phase >= JobPhase::kSucceeded;
}

// A node that joined a job, whether it has a seat in the present generation or not.
struct Joined {
  bool spare = false;
  int slots = 1;
  int preferred_index = -1;
  int previous_index = -1;  // sticky
  std::uint64_t order = 0;  // of arrival
  // The agent began anew and knows nothing of it: no seat before it has joined again, which it is
  // asked for.
  bool is_forgotten = false;
};

// A node with a seat in the present generation.
struct Member {
  NodeId node_id;
  int node_index = 0;
  int first_rank = 0;
  int num_ranks = 1;
  MemberPhase phase = MemberPhase::kPreparing;
  bool is_gone = false;          // lost or left since it was assigned
  TimePoint lease_over{};        // is_gone and hard fencing: its workers are dead by then
  TimePoint sent_at{};           // of the last Assign, Start or Stop
  std::set<int> finished_ranks;  // local ranks that ended with 0
  struct RankSteps {
    std::int64_t step = -1;  // -1: it reported none, or has ended
    TimePoint reported_at{};
  };
  std::vector<RankSteps> steps;  // by local rank, of its last beat
};

enum class FailureKind { kWorker, kNodeLost, kPreflight, kFinishSkew };

struct Failure {
  FailureKind kind = FailureKind::kWorker;
  TimePoint at{};  // on the coordinator's clock, as well as that can be told
  NodeId node_id;
  int global_rank = -1;
  std::int64_t step = -1;
  supervisor::ExitCause cause = supervisor::ExitCause::kOk;
  int code = 0;  // exit code or signal
  std::string text;
};

// Why a generation is being stopped, and what comes after.
struct StopPlan {
  StopReason reason = StopReason::kFailure;
  std::optional<JobPhase> end;     // decided already; none: decided when all have stopped
  std::optional<Failure> failure;  // the first by time, so far
  bool kill = false;
  std::optional<Milliseconds> grace;  // at most; none: the job's
  bool was_started = true;            // false: the generation was never committed
  TimePoint since{};
  std::string text;
};

// How the job ends: decided, and being written down. Until that is durable nobody hears of it, and nothing else changes.
struct Ending {
  JobPhase phase = JobPhase::kFailed;
  std::string text;
  std::optional<std::uint64_t> ticket;  // none: it could not be written, and is tried again
  TimePoint retry_at{};
};

// The failure that came last, and how often in a row.
struct CrashSeries {
  std::string key;
  int count = 0;
};

struct Job {
  std::shared_ptr<const JobDescription> description;
  std::string request_id;
  std::uint64_t order = 0;  // of its submission: later ones have greater numbers
  JobPhase phase = JobPhase::kPending;
  TimePoint phase_since{};
  std::string text;  // why it ended, or what it waits for

  std::uint64_t generation = 0;        // of `members`
  std::uint64_t generation_floor = 0;  // higher ones were seen: never to be used again
  std::uint64_t assigned_epoch = 0;
  std::vector<Member> members;            // by node_index
  std::map<NodeId, std::size_t> seat_of;  // index into members
  std::map<NodeId, Joined> joined;
  std::uint64_t next_order = 0;
  std::map<NodeId, TimePoint> invited;     // not answered yet; when it was asked last
  std::map<NodeId, std::string> declined;  // not asked again, no seat, and why
  bool is_growing = false;                 // scaled: whoever comes takes part at once
  int previous_nodes = 0;
  std::string store_endpoint;
  int num_ready = 0;
  NodeId slowest_node;  // to be ready
  Milliseconds slowest_took{0};
  int num_done = 0;                            // members whose ranks all ended with 0
  int num_settled = 0;                         // members that are stopped or gone
  std::optional<std::uint64_t> commit_ticket;  // COMMIT is being written
  TimePoint commit_retry_at{};

  TimePoint gather_not_before{};       // back-off, coalescing
  std::optional<TimePoint> min_since;  // min_nodes are there since
  std::optional<TimePoint> first_done_at;
  std::optional<TimePoint> parked_since;  // scale_up = auto: somebody waits since
  bool missing_named = false;
  bool was_started = false;  // some generation was committed
  StopPlan stop;
  std::optional<Ending> ending;

  supervisor::RestartHistory history;
  std::map<supervisor::ExitCause, std::uint64_t> restarts_by_cause;  // since this coordinator began
  CrashSeries crashes;
  std::optional<Failure> last_failure;
  TimePoint started_at{};
  std::int64_t start_step = -1;  // highest step before this generation: up to it, it replays
  std::int64_t max_step = -1;    // highest step of any generation
  supervisor::StepComparison step_times;
  LedgerState ledger;
};

// Nothing about it is decided any more.
[[nodiscard]] inline bool is_over(const Job& job) noexcept {
  return is_terminal(job.phase) || job.ending;
}

// Messages that changed nothing, by reason.
struct DropCounts {
  std::uint64_t lower_epoch = 0;
  std::uint64_t lower_generation = 0;
  std::uint64_t unknown_session = 0;
  std::uint64_t lost_session = 0;
  std::uint64_t repeated = 0;
  std::uint64_t early = 0;  // a message before it is missing: both come again
  std::uint64_t old_beat = 0;
};

struct State {
  CoordinatorConfig config;
  std::uint64_t epoch = 0;
  bool is_outdated = false;  // a higher epoch was seen: nothing is decided any more
  TimePoint ticked_at{};     // the last Tick: every moment until then has been looked at
  std::map<NodeId, Node> nodes;
  std::map<SessionId, NodeId> sessions;
  std::map<ConnectionId, SessionId> connections;
  std::map<JobUuid, Job> jobs;
  std::uint64_t next_order = 1;              // of a job
  std::map<std::uint64_t, JobUuid> tickets;  // records being written whose answer matters
  std::map<std::uint64_t, StopJob> stops;    // by ticket: obeyed, and answered, once durable
  std::uint64_t next_ticket = 1;
  bool journal_full = false;
  DropCounts dropped;
};

}  // namespace accel::agent
