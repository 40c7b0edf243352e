// Actions: everything the coordinator wants done, carried out in order by the one who runs it.
//
// Threads:  plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "agent/coordinator/messages/events.h"
#include "agent/coordinator/messages/messages.h"
#include "agent/coordinator/messages/records.h"

namespace accel::agent {

// A connection that is gone meanwhile: drop it.
struct Send {
  ConnectionId connection = 0;
  CoordinatorMessage message;
};

// After what was sent to it.
struct CloseConnection {
  ConnectionId connection = 0;
};

// Writes `record` and answers with Persisted{ticket}. `sync`: durable against a power cut first.
struct Persist {
  std::uint64_t ticket = 0;
  Record record;
  bool sync = false;
};

// The answer to StartJob or StopJob, once: after that is durable, or it is refused.
struct JobReply {
  std::string request_id;
  JobUuid job_uuid;
  bool accepted = true;
  std::string message;  // why not
  std::string remedy;
};

enum class ReportKind {
  kNodeSuspect,
  kNodeLost,
  kNodeBack,
  kNodeQuarantined,
  kNodesMissing,
  kJobPhase,
  kFirstFailure,
  kStraggler,
  kClockOff,  // the wall clock of a node; told by who runs the coordinator
  kJournalFull,
  kJournalBack,
  kDeclined,  // a node does not take part in a job
  kOutdated,  // a higher leader epoch was seen: this coordinator must step down
};

// For logs, `accel status` and Watch. Nothing depends on it.
struct Report {
  ReportKind kind = ReportKind::kJobPhase;
  JobUuid job_uuid;
  NodeId node_id;
  std::string text;
};

using Action = std::variant<Send, CloseConnection, Persist, JobReply, Report>;
using Actions = std::vector<Action>;

// Answers to beats and nothing else: no job looks different than before (`violation` of tests/support/virtual_cluster.h).
[[nodiscard]] inline bool only_answers_beats(const Actions& actions) {
  return !actions.empty() && std::all_of(actions.begin(), actions.end(), [](const Action& action) {
    const auto* const send = std::get_if<Send>(&action);
    return send != nullptr && std::holds_alternative<BeatAck>(send->message.body);
  });
}

}  // namespace accel::agent
