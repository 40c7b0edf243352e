// WorkerHost: the owner's side of a job: starts the shim, hears its events, sends it requests.
//
// When the shim is killed its workers die with it. What they had started falls to the owner, which
// is a subreaper (start_shim() makes it one); next_event() then sweeps it and ends with an error that
// says so. What falls to another process (the shim was taken over), and what an owner of many jobs
// cannot tell apart, is found by the job's tags alone (ACCEL_JOB_ID, ACCEL_NODE_ID,
// ACCEL_JOB_INSTANCE); but where that owner has made a cgroup for the job everything in it is killed, and found empty, when
// the shim has ended (delegated_cgroup.h).
//
// An owner of many jobs (kManyJobs) does not wait for a shim, which runs as another user and may not do what it should:
// once it has said its last word, or is lost, a thread of the host waits for its end, kills it after `patience` and sweeps;
// event_fd() is readable when that is done. All other owners wait, in next_event(): for `patience` after the last word, else
// as long as the shim has something to do.
//
// Threads:  one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <accel/result.h>

#include "runtime/supervisor/protocol/frames.h"
#include "runtime/supervisor/protocol/job_spec.h"
#include "runtime/supervisor/spawn/spawner.h"
#include "runtime/system.h"

namespace accel::supervisor {

class WorkerHost {
 public:
  virtual ~WorkerHost() = default;

  // Readable when next_event() has something.
  [[nodiscard]] virtual int event_fd() const = 0;

  // The next event that is there, without waiting. A JobOutcome is the last one.
  // Errors  kProtocol: the shim is of another build; kShimLost: it ended before the job did, and
  // every
  //         process of the job was killed.
  [[nodiscard]] virtual Result<std::optional<HostEvent>> next_event() = 0;

  virtual void request(const HostRequest& request) = 0;

  // SIGKILL to the shim, and its workers die with it: next_event() ends with kShimLost, which says `why`.
  virtual void kill_shim(const std::string& why) = 0;

  // Of all frames so far, as they were received.
  [[nodiscard]] virtual std::uint64_t bytes_received() const = 0;

  // After kShimLost: processes of the job that were there before our SIGKILL, and still are. The owner's own finding, which
  // no user can make up; a fork bomb that outruns the sweep is not among them.
  [[nodiscard]] virtual int num_unkillable() const = 0;

  // After kShimLost: whether nothing else of the job can be left. A cgroup proves it; where there is none the tags do, if
  // this process may read the environment of the job's.
  [[nodiscard]] virtual bool is_end_proved() const = 0;
};

// kOneJob: everything below the owner belongs to the job, and is swept when the shim is lost.
// kManyJobs: the owner has other children, so a lost shim's processes are found by their tag alone.
// kProgram: as kManyJobs, and the owner does not become a subreaper: it is a program of the user's, whose children are
//           none of our business. What a lost shim leaves behind and carries no tag stays.
enum class OwnerKind { kOneJob, kManyJobs, kProgram };

struct ShimHostOptions {
  std::string shim_path;  // empty: $ACCEL_SHIM, else accel-shim beside this program
  OwnerKind owner = OwnerKind::kOneJob;
  std::optional<Credentials> credentials;  // whose rights shim and workers get; empty: ours
  std::optional<EnvMap> env;               // of the shim (its user can read it); empty: ours
  int stdio[3] = {0, 1, 2};                // of the shim: where unredirected streams go
  std::string cgroup;  // kManyJobs: of make_delegated_cgroup(), removed with the job; empty: none
  // How long a shim that has said its last word, or with kManyJobs closed its socket, may go on before it is killed.
  std::chrono::milliseconds patience{5'000};
  System* system = &real_system();
};

// Starts accel-shim for `spec`. Destroying the host ends the job: the shim sees it, stops the
// workers with SIGKILL and sweeps; the destructor waits for that (kManyJobs: for `patience`, then kills it). With OwnerLoss::kHold it only lets
// go, and the shim begins to hold. Errors  kShimMissing, kSpawnFailed.
[[nodiscard]] Result<std::unique_ptr<WorkerHost>> start_shim(const JobSpec& spec,
                                                             ShimHostOptions options = {});

// Where accel-shim is: `given`, else $ACCEL_SHIM, else beside this program. Errors kShimMissing.
[[nodiscard]] Result<std::string> find_shim(const std::string& given);

// A memfd with the job as accel-shim reads it, and the drawn JobSpec::instance when `spec` has none.
// Errors  kSpawnFailed.
[[nodiscard]] Result<UniqueFd> job_memfd(JobSpec& spec);

// The host of a shim that another process of ours has started as its child. That process sweeps what a lost shim leaves
// behind; this one is no subreaper. pidfd is of the shim, `socket` our end of the pair.
[[nodiscard]] std::unique_ptr<WorkerHost> watch_shim(const JobSpec& spec,
                                                     FrameSocket socket,
                                                     pid_t pid,
                                                     UniqueFd pidfd,
                                                     System& system = real_system());

// Takes over a shim that holds. The first event is a Snapshot; those that nobody heard follow.
// Destroying the host lets go again.
//
// state_file  what the shim wrote into the runtime folder: "<job id>.shim"
// options     cgroup and credentials are those of start_shim()
// Errors  kShimState: the file cannot be used (see read_shim_state()).
//         kShimLost: no such process runs any more; the file can be removed.
//         kShimRefused: another token, or the job has an owner.
//         kProtocol: names both versions; the shim and its workers go on until their hold ends.
[[nodiscard]] Result<std::unique_ptr<WorkerHost>> adopt_shim(const std::string& state_file,
                                                             const std::string& token,
                                                             ShimHostOptions options = {});

// Kills every process that carries the tags of the job, the shim included: for a job that cannot be
// taken over; or, where the job has a `cgroup` that can be seen, everything in it.
// An empty `instance` is that of any job of this name on this node.
// Waits for their ends; gives what was found, and whether all of it has ended.
struct EndedJob {
  std::vector<Leftover> killed;
  int num_left = 0;         // of the cgroup: processes that SIGKILL has not ended
  bool is_clean = true;     // nothing that was found is left
  bool has_cgroup = false;  // which is the proof
};
[[nodiscard]] EndedJob end_job(const std::string& job_id,
                               const std::string& node_id,
                               const std::string& instance = {},
                               const std::string& cgroup = {},
                               System& system = real_system());

// Whether tags of processes of this user can be read: of others' it takes CAP_SYS_PTRACE.
[[nodiscard]] bool can_read_tags_of(uid_t user);

}  // namespace accel::supervisor
