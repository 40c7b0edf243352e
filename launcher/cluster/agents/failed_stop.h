// FailedStop: what is told of a StopJob whose call failed.
//
// Threads:  pure.
#pragma once

#include <string>

#include <grpcpp/grpcpp.h>

namespace accel::cluster {

struct FailedStop {
  std::string message;
  bool is_known =
      true;  // that nothing was stopped; false: the agent may have done it, and its answer was lost
};
[[nodiscard]] FailedStop failed_stop(grpc::StatusCode code, const std::string& why);

}  // namespace accel::cluster
