// WorkerHost: the owner's side of a job: starts the shim, hears its events, sends it requests.
//
// The owner must be a subreaper (ShimHost makes it one): when the shim is killed, what its workers
// had started falls to the owner. next_event() then sweeps it and ends with an outcome that says
// so.
//
// Threads:  one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include <accel/result.h>

#include "runtime/supervisor/frames.h"
#include "runtime/supervisor/job_spec.h"
#include "runtime/supervisor/spawner.h"
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
};

// kOneJob: everything below the owner belongs to the job, and is swept when the shim is lost.
// kManyJobs: the owner has other children, so a lost shim's processes are found by their tag alone.
enum class OwnerKind { kOneJob, kManyJobs };

struct ShimHostOptions {
  std::string shim_path;  // empty: $ACCEL_SHIM, else accel-shim beside this program
  OwnerKind owner = OwnerKind::kOneJob;
  std::optional<Credentials> credentials;  // whose rights shim and workers get; empty: ours
  std::optional<EnvMap> env;               // of the shim (its user can read it); empty: ours
  int stdio[3] = {0, 1, 2};                // of the shim: where unredirected streams go
  System* system = &real_system();
};

// Starts accel-shim for `spec`. Destroying the host ends the job: the shim sees it, stops the
// workers with SIGKILL and sweeps; the destructor waits for that. Errors  kShimMissing,
// kSpawnFailed.
[[nodiscard]] Result<std::unique_ptr<WorkerHost>> start_shim(const JobSpec& spec,
                                                             ShimHostOptions options = {});

}  // namespace accel::supervisor
