#include "agent/calls/grpc_status.h"

#include <algorithm>

#include "agent/calls/call_turns.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

struct Meaning {
  ErrorCode code;
  grpc::StatusCode status;
};

constexpr Meaning kMeanings[] = {
    {ErrorCode::kInvalidArgument, grpc::StatusCode::INVALID_ARGUMENT},
    {ErrorCode::kAgentRefused, grpc::StatusCode::PERMISSION_DENIED},
    {ErrorCode::kJobUnknown, grpc::StatusCode::NOT_FOUND},
    {ErrorCode::kAuthentication, grpc::StatusCode::UNAUTHENTICATED},
    {ErrorCode::kUnsupported, grpc::StatusCode::UNIMPLEMENTED},
    {ErrorCode::kCoordinatorLost, grpc::StatusCode::FAILED_PRECONDITION},
    {ErrorCode::kInternal, grpc::StatusCode::INTERNAL},
};

}  // namespace

grpc::Status to_status(const Error& error) {
  const std::string text = error.message() + "\n" + error.remedy();
  for (const Meaning& known : kMeanings) {
    if (known.code == error.code()) return {known.status, text};
  }
  return {grpc::StatusCode::INTERNAL, text};
}

Error unknown_job(const std::string& job) {
  return Error(ErrorCode::kJobUnknown, "there is no job '" + job.substr(0, 64) + "' here");
}

Error ambiguous_job(const std::string& name, const std::vector<std::string>& holders) {
  constexpr std::size_t kMostNamed = 8;
  std::string text;
  for (std::size_t i = 0; i < std::min(kMostNamed, holders.size()); ++i)
    text += (i > 0 ? ", " : "") + holders[i];
  return Error(ErrorCode::kInvalidArgument,
               std::to_string(holders.size()) + " jobs are named '" + name + "': " + text +
                   (holders.size() > kMostNamed ? ", ..." : ""),
               "give the uuid of the one that you mean");
}

Error too_many_calls(const std::string& caller) {
  return Error(ErrorCode::kAgentRefused,
               caller + " has " + std::to_string(CallTurns::kMostWaiting) +
                   " calls that wait, as many as one caller may",
               "wait until some of them are answered");
}

Error to_error(const grpc::Status& status, const Unanswered& unanswered) {
  const std::string& said = status.error_message();
  const std::size_t end = said.find('\n');
  const std::string message = printable(said.substr(0, end));
  const std::string remedy = end == std::string::npos ? "" : printable(said.substr(end + 1));
  for (const Meaning& known : kMeanings) {
    if (known.status == status.error_code()) return Error(known.code, message, remedy);
  }
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
      status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
    return Error(unanswered.code,
                 "no answer from " + unanswered.endpoint + ": " + message,
                 unanswered.remedy);
  }
  return Error(ErrorCode::kInternal, message, remedy);
}

}  // namespace accel::agent
