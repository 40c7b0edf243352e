// ElasticFaults: why a launcher of an elastic job ends without its success, as people, shells and callers are told.
//
// Threads:  pure functions, but keep_failure_of().
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include <accel/result.h>

#include "agent/coordinator/messages/messages.h"
#include "launcher/start/elastic/elastic_settings.h"
#include "runtime/supervisor/protocol/job_outcome.h"

namespace accel::cluster {

// kCoordinatorLost: the one at `endpoint` is gone, and a generation under another one would be one too many.
[[nodiscard]] Error no_restart_left(const std::string& endpoint,
                                    const launcher::ElasticRequest& request);
// kCoordinatorLost, or of a launcher that it never welcomed kRendezvousTimeout.
[[nodiscard]] Error unanswered(const std::string& endpoint,
                               bool was_welcome,
                               std::chrono::seconds waited);
// kAuthentication: the coordinator does not believe us; `is_open`: for all that it wants to see is the name of the job.
[[nodiscard]] Error stranger(const std::string& why,
                             bool is_open,
                             const launcher::ElasticRequest& request);

// The exit status of a job that did not succeed: our own worker's code; 85 when it was stopped and all have saved.
[[nodiscard]] int status_of(agent::NoticeKind kind,
                            const std::optional<supervisor::JobOutcome>& outcome,
                            int stop_signal);

// Into the launcher's own TORCHELASTIC_ERROR_FILE. Errors  kFileIo.
[[nodiscard]] Result<void> keep_failure_of(const supervisor::JobOutcome& outcome,
                                           const launcher::ElasticRequest& request);

}  // namespace accel::cluster
