// JobSpec: everything the shim needs to run one job on one node, decided beforehand by its owner.
//
// The owner (accel-launch, later accel-agent) resolves flags, files and topology into a JobSpec and
// hands it to accel-shim as JSON in a memfd. The shim adds only what it alone can know: the store's
// port, the restart count, the channel's descriptors.
//
// Threads:  plain values.
#pragma once

#include <chrono>
#include <csignal>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <accel/env_contract.h>
#include <accel/result.h>

#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::supervisor {

using Milliseconds = std::chrono::milliseconds;

// Which of a worker's streams go where. Bits as in torchrun's Std: 1 = stdout, 2 = stderr, 3 =
// both.
enum class Streams : int { kNone = 0, kOut = 1, kErr = 2, kAll = 3 };

// Memory nodes above it are not known to any kernel that is built today (CONFIG_NODES_SHIFT).
inline constexpr int kMaxMemoryNodes = 1024;

struct WorkerSpec {
  int local_rank = 0;
  int global_rank = 0;
  std::vector<std::string> argv;  // argv[0] is looked up on PATH when it has no '/'
  EnvMap env;                     // on top of JobSpec::env; the identity comes on top of both
  std::vector<int> cpus;          // affinity as OS indices; empty keeps the granted set
  std::vector<int> memory_nodes;  // OS indices; empty keeps the memory policy of the shim
  bool bind_memory = false;       // from memory_nodes alone; else from the first, while it has room
  Streams redirect = Streams::kNone;  // to the log file only
  Streams tee = Streams::kNone;       // to the log file and the console
  // It starts the ranks (mpirun, ssh) and is none itself: no channel, no error file, which several
  // ranks would share.
  bool is_starter = false;
  // It sees LOCAL_RANK 0, for the one device that `env` leaves it; ACCEL_LOCAL_RANK has the number.
  bool has_virtual_local_rank = false;
};

// A program that has to end with 0 on this node before any worker of a generation starts.
struct PreflightCheck {
  std::string name;  // [A-Za-z0-9_.-]{1,64}
  std::vector<std::string> argv;
  Milliseconds limit{30'000};
};

struct StopPolicy {
  int signal = SIGTERM;
  Milliseconds grace{30'000};     // from the signal to SIGKILL
  Milliseconds linger{10'000};    // for the descendants of a rank that ended with 0
  Milliseconds kill_wait{2'000};  // from SIGKILL to "unkillable"
  int requeue_exit_code = 85;     // of a preempted job whose ranks have all saved; 0: as any other
  Milliseconds drain{3'000};      // at the end, for a console or file that takes nothing any more
  bool dump_stacks = false;       // of all that runs, `dump_wait` before SIGKILL
  Milliseconds dump_wait{2'000};  // at most half of the grace
  // What workers that do not handle preemption get first when the job is asked to end; they get `signal` when those that
  // do get it. 0: `signal` at once.
  int preempt_signal = 0;
};

struct RestartPolicy {
  int max_restarts = 0;
  int max_out_of_memory = 1;            // restarts after running out of memory, beside max_restarts
  Milliseconds backoff_initial{1'000};  // before the second restart within `stable_after`
  Milliseconds backoff_max{60'000};
  Milliseconds stable_after{60'000};  // a generation that lived so long restarts at once again
  double jitter = 0.5;                // the random share of a delay, 0 to 1
  int max_same_crash =
      0;  // the same cause, code, rank and step so often in a row: no more; 0: no matter how often
  std::vector<ExitCause> fail_after;     // causes after which there is no restart
  std::vector<ExitCause> restart_after;  // causes that get one although they would come again
};

// When a log file is full, and what becomes of it (see log_layout.h).
struct LogRotation {
  static constexpr std::uint64_t kLeastBytes = 4096;
  static constexpr int kMostKept = 1000;

  std::uint64_t bytes = 0;  // of a file; 0: it grows without end
  int keep = 8;             // full files of each stream that stay, the newest ones
};

// What happens to output that a file or console does not take as fast as it comes.
enum class Overflow {
  kBlock,   // the worker waits
  kDrop,    // it is dropped
  kSample,  // it is dropped but for lines here and there (see line_sampler.h)
};

struct LogPolicy {
  std::string dir;        // empty: no files; the files below it: see log_layout.h
  std::string error_dir;  // without `dir`: a folder to be made for error files, gone with the job
  bool prefix = false;    // "[r3 err] " on console lines
  std::string prefix_template;  // another one; without `prefix` for teed streams; see line_prefix.h
  Overflow overflow = Overflow::kBlock;
  bool merge_stderr = false;  // descriptors 1 and 2 are one stream, stdout
  LogRotation rotation;
  // Lines of teed streams with one of these texts in them also go to filtered_stdout.log and filtered_stderr.log of their
  // generation, behind "[ROLE LOCAL_RANK]:" without the blank. Empty: there is no such file.
  std::vector<std::string> out_filters;
  std::vector<std::string> err_filters;
};

struct ConsolePolicy {
  bool use_pty = false;        // rank 0 gets a pseudo terminal (stdout is a terminal)
  bool stdin_to_rank0 = true;  // the others read /dev/null
  // Nothing is typed to the workers: their input stays open, and its end is what asks them to stop
  // in the place of the first signal. It reaches a program behind ssh, as no signal does.
  bool stop_by_input = false;
  std::string held_input;   // what they read first then: at most 32 KiB
  bool foreground = false;  // one worker, owner on a terminal: the worker gets the terminal itself
};

// Stands for the addresses of all other machines in StorePolicy::members.
inline constexpr std::string_view kEveryMachine = "*";

struct StorePolicy {
  bool enabled = true;
  std::string bind_address = "127.0.0.1";
  std::uint16_t port = 29500;  // 0: any free one
  bool exact_port = false;     // the user named it: never another one
  // Numeric addresses of other machines that may connect, or kEveryMachine. From this machine only
  // the job's user may.
  std::vector<std::string> members;
};

// Who decides when a generation starts and whether another one follows.
enum class GenerationControl {
  kShim,   // the shim, by RestartPolicy
  kOwner,  // the owner, by PrepareGeneration, StartGeneration, StopGeneration and Finish
};

// Of one worker with all that it starts; 0: none.
struct LimitPolicy {
  // These need a cgroup that hands the controllers down.
  std::uint64_t memory_bytes = 0;  // memory.max, no swap; past it the kernel ends the rank
  std::uint64_t pids = 0;          // pids.max: processes and threads

  // Of each process, soft and hard; not above what the owner itself may have.
  std::uint64_t open_files = 0;    // RLIMIT_NOFILE
  std::uint64_t core_bytes = 0;    // RLIMIT_CORE
  std::uint64_t locked_bytes = 0;  // RLIMIT_MEMLOCK

  [[nodiscard]] bool any_of_cgroup() const noexcept { return memory_bytes > 0 || pids > 0; }
};

// What becomes of the workers when the owner is gone.
enum class OwnerLoss {
  kKill,  // they are killed at once
  kHold,  // they go on, and a new owner is waited for
};

struct OwnerPolicy {
  OwnerLoss on_loss = OwnerLoss::kKill;
  Milliseconds hold{60'000};  // until everything is killed after all
  std::string
      runtime_dir;    // kHold: folder of mode 0700 of the job's user, for socket and state file
  std::string token;  // kHold: what a new owner must know; at least 16 bytes
};

// When a worker that has reported progress and reports none any more counts as hung.
enum class HangMode {
  kOff,
  kAuto,   // after `safety` times the p99 of the times between its job's reports, at least `floor`
  kFixed,  // after `timeout`
};

struct HangPolicy {
  HangMode mode = HangMode::kOff;
  Milliseconds timeout{0};            // kFixed
  Milliseconds floor{30'000};         // kAuto
  int safety = 3;                     // kAuto
  Milliseconds first_beat{600'000};   // for a rank that is silent while others report, and for the
                                      // first steps of all
  Milliseconds other_phase{600'000};  // at least, outside of training: saving, loading, evaluating
  Milliseconds dump_wait{2'000};      // for the stacks, before the workers are stopped
};

struct JobSpec {
  static constexpr int kVersion = 6;
  static constexpr int kOldestVersion = 1;  // members that it lacks keep their defaults
  static constexpr std::size_t kInstanceLength = 32;

  std::string job_id;  // [A-Za-z0-9_.-]{1,64}
  std::string cwd;     // empty keeps the owner's
  EnvMap env;          // the whole base environment of the workers
  EnvMode env_mode = EnvMode::kDistributed;
  WorkerIdentity identity;  // what all workers share; ranks are overwritten per worker
  std::vector<WorkerSpec> workers;
  StopPolicy stop;
  RestartPolicy restart;
  LogPolicy log;
  ConsolePolicy console;
  StorePolicy store;  // with GenerationControl::kOwner only `enabled` counts: see PrepareGeneration
  GenerationControl control = GenerationControl::kShim;
  LimitPolicy limits;
  OwnerPolicy owner;
  HangPolicy hang;
  std::string node_id;  // ACCEL_NODE_ID: the sweep ends only processes that carry it; may be empty
  std::vector<PreflightCheck> preflight;  // in this order
  std::string instance;  // ACCEL_JOB_INSTANCE, as node_id; 32 digits, empty: start_shim() draws it
};

[[nodiscard]] std::string to_json(const JobSpec& spec);

// Errors  kProtocol for another version or a missing field, kInvalidArgument for an impossible
// value.
[[nodiscard]] Result<JobSpec> job_spec_from_json(std::string_view json);

}  // namespace accel::supervisor
