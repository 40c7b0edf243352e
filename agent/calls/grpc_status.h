// GrpcStatus: errors as the statuses of gRPC calls, and back.
//
// The message of a status is the error's message and, on a second line, what to do about it. Codes without a status of
// their own travel as INTERNAL.
//
// Threads:  pure functions.
// Source:   both directions in tests/unit/agent/calls/grpc_status_test.cc.
#pragma once

#include <string>
#include <vector>

#include <grpcpp/support/status.h>

#include <accel/error.h>

namespace accel::agent {

[[nodiscard]] grpc::Status to_status(const Error& error);

// What it means that nobody answered.
struct Unanswered {
  ErrorCode code = ErrorCode::kAgentUnreachable;
  std::string endpoint;  // who was asked
  std::string remedy;    // empty: the code's
};

// kJobUnknown. Names at most 64 bytes of the job.
[[nodiscard]] Error unknown_job(const std::string& job);

// kInvalidArgument, for one who may see the jobs of this name of several users. holders  "ann (<uuid>)".
[[nodiscard]] Error ambiguous_job(const std::string& name, const std::vector<std::string>& holders);

// kAgentRefused: CallTurns has no room.
[[nodiscard]] Error too_many_calls(const std::string& caller);

// Of a status that is not OK. What came over the wire is made printable.
[[nodiscard]] Error to_error(const grpc::Status& status, const Unanswered& unanswered);

}  // namespace accel::agent
