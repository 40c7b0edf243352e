// launch_machines: accel-launch on one of several machines that agree through the store of machine 0.
//
// The part with the effects: shim, store, signals, clock and console. What is done when is decided by
// Machine and, on machine 0, by Leader; both are pure.
//
// Threads:  one, with the signals of TakenSignals blocked.
// Source:   docs/internals/rendezvous.md "Without a daemon"; tests/integration/machines/run.py.
#pragma once

#include <functional>
#include <optional>

#include <accel/result.h>

#include "launcher/cluster_entry/etcd_seat.h"
#include "launcher/run/notice_queue.h"
#include "launcher/run/progress_line.h"
#include "launcher/run/report.h"
#include "launcher/start/machines/board/job_token.h"
#include "launcher/start/machines/settings/machines_settings.h"
#include "launcher/watch/watch_service.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/protocol/job_spec.h"

namespace accel::launcher {

struct MachinesLaunchOptions {
  MachinesSettings settings;
  supervisor::JobSpec spec;       // of this machine; its ranks are overwritten
  std::optional<JobToken> token;  // without one whoever reaches the store is believed
  // Of machine 0, which etcd made that; null without etcd. Given up before the others hear that the job is
  // over, so that the next one of the same name finds it free.
  EtcdSeat* seat = nullptr;
  bool quiet = false;
  ReportStyle report;
  // At most so long from the first stop signal to SIGKILL.
  std::function<supervisor::Milliseconds(int signal)> grace;
  ProgressLine* progress = nullptr;  // shown by machine 0, of its own workers; none: no line
  WatchService* watch = nullptr;     // shows the workers of this machine; may be none
};

struct MachinesEnding {
  int exit_code = 0;            // on every machine that of the first failure, 128 + signal, or 0
  bool is_interrupted = false;  // by a Ctrl-C at the terminal of this machine
  int world_size = 1;
  std::optional<supervisor::JobOutcome> outcome;  // of the workers of this machine
};

// Blocks until the job has ended on this machine. What is to be told goes to `notices`, in the end to stderr.
//
// Errors  those of start_shim(); kStoreUnreachable: machine 0 cannot be reached, or is gone;
//         kPortInUse: machine 0 cannot listen; kInvalidArgument: the machines do not agree;
//         kAuthentication: machine 0 does not have the same token; kRendezvousTimeout: not all of
//         them came.
[[nodiscard]] Result<MachinesEnding> launch_machines(MachinesLaunchOptions options,
                                                     NoticeQueue& notices);

}  // namespace accel::launcher
