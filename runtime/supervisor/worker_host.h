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

struct ShimHostOptions {
  std::string shim_path;  // empty: $ACCEL_SHIM, else accel-shim beside this program
  System* system = &real_system();
};

// Starts accel-shim for `spec`. Destroying the host ends the job: the shim sees it, stops the
// workers with SIGKILL and sweeps; the destructor waits for that. Errors  kShimMissing,
// kSpawnFailed.
[[nodiscard]] Result<std::unique_ptr<WorkerHost>> start_shim(const JobSpec& spec,
                                                             ShimHostOptions options = {});

}  // namespace accel::supervisor
