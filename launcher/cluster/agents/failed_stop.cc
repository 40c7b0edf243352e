#include "launcher/cluster/agents/failed_stop.h"

namespace accel::cluster {

FailedStop failed_stop(grpc::StatusCode code, const std::string& why) {
  const bool is_lost =
      code == grpc::StatusCode::DEADLINE_EXCEEDED || code == grpc::StatusCode::UNAVAILABLE;
  if (is_lost)
    return {.message = "it is not known whether it was stopped: " + why, .is_known = false};
  return {.message = "not stopped: " + why};
}

}  // namespace accel::cluster
