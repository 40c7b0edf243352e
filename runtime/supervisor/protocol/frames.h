// Frames: what shim and owner say to each other, one JSON object per packet of a SOCK_SEQPACKET
// pair.
//
//   shim -> owner   hello, refused, generation_started, worker_exited, restarting, notice, outcome;
//                   store_opened, prepared, prepare_failed, generation_ended when the owner drives
//                   generations;
//                   snapshot; worker_stopped, hung, straggler; status_shown
//   owner -> shim   stop, suspend, resume, window_size, dump_stacks, take_snapshot, show_status;
//                   open_store, prepare_generation, start_generation, stop_generation, renew_lease, finish; adopt
//
// The first frame of the shim is hello with the protocols that it speaks; the owner goes on when
// its own is among them. The end of the stream means that the other side is gone.
//
// Threads:  one thread per socket.
// Source:   docs/internals/supervision.md; round trips and hostile bytes in
// tests/unit/supervisor/frames_test.cc.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <accel/channel.h>
#include <accel/result.h>

#include "runtime/supervisor/kernel/pseudo_terminal.h"
#include "runtime/supervisor/protocol/frame_socket.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/lease.h"

namespace accel::supervisor {

inline constexpr int kProtocolVersion = 3;
inline constexpr int kOldestProtocol = 1;  // that this build still understands
inline constexpr int kLeaseProtocol = 3;   // the first whose shims keep a lease
extern const char* const kBuildVersion;    // of accel: goes into Hello and Adopt, and into messages

// ---- shim -> owner ----

struct Hello {
  int protocol = kProtocolVersion;
  int oldest_protocol = kOldestProtocol;
  std::string build;  // version of the shim's build, for the message when the protocols differ
  std::int64_t pid = 0;
};

struct GenerationStarted {
  int generation = 0;
  std::vector<std::int64_t> pids;  // by local rank
  int store_port = 0;              // 0: no store
};

struct Restarting {
  int next_generation = 0;
  std::chrono::milliseconds delay{0};
  WorkerExit because;
};

struct Notice {
  std::string text;
};

// The job cannot be run (a port in use, a log folder that cannot be written). The last event.
struct Refused {
  Error error{ErrorCode::kInternal, ""};
};

// The store of a generation listens, before its ranks are known.
struct StoreOpened {
  int generation = 0;
  int store_port = 0;
};

// The generation is ready to start: its store listens, nothing of an older one is left.
struct Prepared {
  int generation = 0;
  int store_port = 0;  // 0: this node does not host the store
};

// It could not be made ready; another try, of this or a later generation, may be asked for.
struct PrepareFailed {
  int generation = 0;
  Error error{ErrorCode::kInternal, ""};
};

// A generation that the owner drives is over on this node. Its store, when it is here, goes on
// serving the other nodes until the next generation is prepared or the job is finished.
struct GenerationEnded {
  int generation = 0;
  JobOutcome outcome;          // of the workers of this node
  bool is_clean = true;        // false: something could not be killed
  bool made_progress = false;  // a worker reported a step
};

struct WorkerSnapshot {
  int local_rank = 0;
  int global_rank = 0;
  std::int64_t pid = 0;
  bool is_alive = false;
  std::uint64_t beats = 0;  // 0: it has not reported anything in its channel
  std::uint64_t step = 0;
  std::uint64_t samples = 0;
  int phase = 0;                            // accel::WorkerPhase
  std::chrono::milliseconds silent_for{0};  // since its last beat
  StepTimes times;                          // as the worker says; 0 steps: it measures none
};

// Where the job stands.
struct Snapshot {
  std::string job_id;
  std::string state;  // "idle", "parked", "prepared", "running", "stopping", "waiting", "finished"
  int generation = 0;
  int store_port = 0;
  std::vector<WorkerSnapshot> workers;
  std::vector<WorkerExit> exits;     // of this generation, without their texts
  std::uint64_t stale_requests = 0;  // of another generation than the current one; not obeyed
  BootTime lease_until{0};           // of the current generation; zero: it needs none
  bool is_stop_asked = true;         // by its owner; also true of a build that does not say
};

// A worker was stopped (SIGSTOP, a debugger) or goes on. While one is, no rank counts as hung.
struct WorkerStopped {
  int global_rank = 0;
  std::int64_t pid = 0;
  bool is_stopped = true;
  bool is_traced = false;
};

// No progress for longer than the limit. The stacks are being taken; then the workers are stopped.
struct Hung {
  int generation = 0;
  int global_rank = 0;     // which stopped first: the lowest step, then the longest silence
  std::uint64_t step = 0;  // its last
  std::chrono::milliseconds silent_for{0};
  std::chrono::milliseconds limit{0};
  std::vector<int> silent_ranks;
};

// A rank whose steps take longer than those of the others on this node.
struct Straggler {
  int generation = 0;
  int global_rank = 0;
  std::chrono::milliseconds step_time{0};
  std::chrono::milliseconds median{0};
  double score = 0;  // robust z-score: distance from the median in units of 1.4826 MAD
};

// The terminal shows what ShowStatus asked for, or does not take it now.
struct StatusShown {
  std::uint64_t number = 0;  // of the request
};

using HostEvent = std::variant<Hello,
                               Refused,
                               GenerationStarted,
                               WorkerExit,
                               Restarting,
                               Notice,
                               JobOutcome,
                               StoreOpened,
                               Prepared,
                               PrepareFailed,
                               GenerationEnded,
                               Snapshot,
                               WorkerStopped,
                               Hung,
                               Straggler,
                               StatusShown>;

// ---- owner -> shim ----

enum class StopMode {
  kInterrupt,  // SIGINT, grace, SIGKILL
  kTerminate,  // preemption notice and the stop signal, grace, SIGKILL
  kKill,       // SIGKILL now
};

struct Stop {
  StopMode mode = StopMode::kTerminate;
  int signal = 0;  // what the owner was sent: the outcome names it, the exit code is 128 + signal
  std::optional<int> delivered_to;      // the terminal gave the signal to this generation already
  std::chrono::milliseconds grace{-1};  // below 0: the job's; a stop that goes on is only shortened
};
struct Suspend {};
struct Resume {};
struct DumpStacks {};

struct TakeSnapshot {};

// A line below the workers' output, where the owner's stderr is a terminal (logs/status_line.h); answered by StatusShown once it
// stands there, unless the job ends before.
struct ShowStatus {
  std::uint64_t number = 0;  // comes back in the answer
  std::string text;          // of one row, at most 4 KiB; empty: none
  bool despite_returns = false;
};

// Opens the store of a generation before it is prepared: owners on several machines agree on its
// ranks through it. A PrepareGeneration of the same number that hosts the store keeps this one.
// Answered by StoreOpened or PrepareFailed.
struct OpenStore {
  int generation = 0;                      // above every one that has ended
  std::string bind_address = "127.0.0.1";  // numeric
  int port = 0;                            // 0: any free one
  bool is_exact_port = false;              // never another one
  std::vector<std::string> members;        // as in StorePolicy
};

// Makes a generation ready: who this node is in it, and where its store is. Answered by Prepared or
// PrepareFailed. Nothing starts before StartGeneration.
struct PrepareGeneration {
  int generation = 0;  // above every one that has ended
  int restart_count = 0;
  int first_rank = 0;  // global rank of local rank 0; the others follow
  int world_size = 1;
  int node_rank = 0;
  int num_nodes = 1;
  bool hosts_store = true;
  std::string bind_address = "127.0.0.1";  // of the store, numeric
  int port = 0;                            // of the store; 0: any free one
  bool is_exact_port = false;              // never another one
  std::vector<std::string> members;        // numeric addresses that may connect to the store
  BootTime lease_until{0};  // its workers are dead by then, unless renewed; 0: no lease
};

// Lets the workers of the generation run on to `until`. Not answered.
struct RenewLease {
  int generation = 0;
  BootTime until{0};
};

struct StartGeneration {
  int generation = 0;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;  // 0: the port of the store of this node
};

// Answered by GenerationEnded once nothing of the generation is left.
struct StopGeneration {
  int generation = 0;
  StopMode mode = StopMode::kTerminate;
  std::chrono::milliseconds grace{-1};  // as in Stop
};

// The first frame of a new owner to a shim that holds. Answered by Snapshot and the events that
// nobody heard, or by Refused.
struct Adopt {
  int protocol = kProtocolVersion;
  int oldest_protocol = kOldestProtocol;
  std::string build;
  std::string token;
};

// No generation follows: the job ends, with its outcome, once the current generation has.
struct Finish {};

using HostRequest = std::variant<Stop,
                                 Suspend,
                                 Resume,
                                 WindowSize,
                                 DumpStacks,
                                 TakeSnapshot,
                                 ShowStatus,
                                 OpenStore,
                                 PrepareGeneration,
                                 StartGeneration,
                                 StopGeneration,
                                 RenewLease,
                                 Finish,
                                 Adopt>;

// Whether this build and the one that says hello understand each other.
[[nodiscard]] bool has_common_protocol(const Hello& hello);
// "1", "1 to 2".
[[nodiscard]] std::string describe_protocols(int oldest, int newest);

[[nodiscard]] std::string encode(const HostEvent& event);
[[nodiscard]] std::string encode(const HostRequest& request);

// Errors  kProtocol for bytes that are no such frame.
[[nodiscard]] Result<HostEvent> decode_event(std::string_view frame);
[[nodiscard]] Result<HostRequest> decode_request(std::string_view frame);

}  // namespace accel::supervisor
