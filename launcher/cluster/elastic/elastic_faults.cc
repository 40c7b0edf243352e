#include "launcher/cluster/elastic/elastic_faults.h"

#include <accel/env_contract.h>

#include "launcher/flags/flag_spelling.h"
#include "launcher/run/inherited_error_file.h"
#include "launcher/text/program.h"
#include "runtime/supervisor/shim/job_record.h"

namespace accel::cluster {

Error no_restart_left(const std::string& endpoint, const launcher::ElasticRequest& request) {
  const int most = request.spec.restart.max_restarts;
  return Error(
      ErrorCode::kCoordinatorLost,
      "the coordinator at " + endpoint + " is gone, and " +
          (most == 0 ? "no restart is allowed"
                     : "all " + std::to_string(most) + " restarts are used up"),
      "give " + launcher::spelled("max_restarts", request.settings.program) + " a higher number");
}

Error unanswered(const std::string& endpoint, bool was_welcome, std::chrono::seconds waited) {
  const std::string where = "the coordinator at " + endpoint;
  const std::string seconds = std::to_string(waited.count()) + " s";
  if (was_welcome)
    return Error(ErrorCode::kCoordinatorLost, where + " did not answer for " + seconds);
  return Error(ErrorCode::kRendezvousTimeout, where + " could not be reached within " + seconds);
}

Error stranger(const std::string& why, bool is_open, const launcher::ElasticRequest& request) {
  if (!is_open) return Error(ErrorCode::kAuthentication, why);
  const launcher::Program program = request.settings.program;
  return Error(ErrorCode::kAuthentication,
               why,
               "give every node the same " + launcher::spelled("rdzv_id", program) +
                   "; a job with a token needs " + launcher::spelled("rdzv_token_file", program) +
                   " here too");
}

int status_of(agent::NoticeKind kind,
              const std::optional<supervisor::JobOutcome>& outcome,
              int stop_signal) {
  if (kind == agent::NoticeKind::kCancelled)
    return outcome && outcome->has_saved ? outcome->exit_code
                                         : supervisor::exit_code_after(stop_signal);
  return outcome && outcome->first_failure && outcome->exit_code != 0 ? outcome->exit_code : 1;
}

Result<void> keep_failure_of(const supervisor::JobOutcome& outcome,
                             const launcher::ElasticRequest& request) {
  const auto file = process_env()("TORCHELASTIC_ERROR_FILE");
  if (!file) return {};
  const auto num_workers = static_cast<int>(request.spec.workers.size());
  return launcher::keep_error_file(
      outcome, num_workers * request.settings.max_nodes, {{"TORCHELASTIC_ERROR_FILE", *file}});
}

}  // namespace accel::cluster
