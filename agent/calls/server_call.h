// ServerCall: what the services of an agent do with each call of gRPC.
//
// Threads:  functions without state.
#pragma once

#include <functional>
#include <string>

#include <grpcpp/support/server_callback.h>

#include <accel/result.h>

#include "agent/calls/grpc_status.h"

namespace accel::agent {

// The first value that the client gave by this name; empty: none.
[[nodiscard]] inline std::string metadata_of(const grpc::ServerContextBase& context,
                                             const char* name) {
  const auto found = context.client_metadata().find(name);
  return found == context.client_metadata().end()
             ? ""
             : std::string(found->second.data(), found->second.size());
}

// Ends the call; to be called once.
[[nodiscard]] inline std::function<void(const Result<void>&)> finisher(
    grpc::ServerUnaryReactor* reactor) {
  return [reactor](const Result<void>& done) {
    reactor->Finish(done ? grpc::Status::OK : to_status(done.error()));
  };
}

}  // namespace accel::agent
