#include "agent/cluster/job_view.h"

#include <csignal>

#include <google/protobuf/util/time_util.h>

#include <accel/error.h>

#include "agent/rendezvous/job_wire.h"
#include "runtime/supervisor/spawn/exit_report.h"

namespace accel::agent {
namespace {

v1::JobState state_of(JobPhase phase) {
  // The protocol's enumeration is this one, one further.
  return static_cast<v1::JobState>(static_cast<int>(phase) + 1);
}

int exit_code_of(const Failure& failure) {
  if (failure.kind == FailureKind::kPreflight) return failure.code != 0 ? failure.code : 1;
  if (failure.kind == FailureKind::kFinishSkew) return 1;
  supervisor::WorkerExit exit;
  exit.cause = failure.cause;
  const bool has_code = failure.cause == supervisor::ExitCause::kNonZero;
  (has_code ? exit.exit_code : exit.signal) = failure.code;
  if (failure.kind == FailureKind::kNodeLost) exit.cause = supervisor::ExitCause::kLost;
  return supervisor::shell_exit_code(exit);
}

}  // namespace

int exit_code_of(const Job& job) {
  switch (job.phase) {
    case JobPhase::kCancelled:
      return 128 + (job.stop.kill && job.stop.was_started ? SIGKILL : job.description->stop.signal);
    case JobPhase::kFailed:
      return job.last_failure ? exit_code_of(*job.last_failure)
                              : error_info(ErrorCode::kRendezvousTimeout).exit_status;
    default:
      return 0;
  }
}

v1::Ledger view_of(const LedgerState& ledger, TimePoint now) {
  const LedgerState all = settled(ledger, now);
  v1::Ledger view;
  const auto put = [&all](google::protobuf::Duration& out, Account account) {
    out = google::protobuf::util::TimeUtil::NanosecondsToDuration(
        std::chrono::nanoseconds(all.of(account)).count());
  };
  put(*view.mutable_productive(), Account::kProductive);
  put(*view.mutable_detect(), Account::kDetect);
  put(*view.mutable_stop(), Account::kStop);
  put(*view.mutable_rendezvous(), Account::kRendezvous);
  put(*view.mutable_spawn(), Account::kSpawn);
  put(*view.mutable_init(), Account::kInit);
  put(*view.mutable_replay(), Account::kReplay);
  put(*view.mutable_waiting_nodes(), Account::kWaiting);
  if (all.open != Account::kClosed) view.set_open(std::string(name_of(all.open)));
  return view;
}

bool has_seats(JobPhase phase) {
  return phase == JobPhase::kPreparing || phase == JobPhase::kRunning ||
         phase == JobPhase::kStopping || is_terminal(phase);
}

v1::Job head_of(const Job& job) {
  const JobDescription& wanted = *job.description;
  v1::Job view;
  view.set_job_id(wanted.job_id);
  view.set_job_uuid(wanted.job_uuid);
  view.set_user(wanted.user);
  view.set_state(state_of(job.phase));
  view.set_generation(job.generation);
  view.set_restarts(static_cast<std::uint32_t>(job.history.total()));
  view.set_reason(job.text);
  view.set_min_nodes(static_cast<std::uint32_t>(wanted.min_nodes));
  view.set_max_nodes(static_cast<std::uint32_t>(wanted.max_nodes));
  if (is_terminal(job.phase)) view.set_exit_code(exit_code_of(job));
  return view;
}

v1::JobNode node_of(const State& state, const Member& member) {
  v1::JobNode node;
  node.set_node_id(member.node_id);
  node.set_first_rank(static_cast<std::uint32_t>(member.first_rank));
  node.set_count(static_cast<std::uint32_t>(member.num_ranks));
  node.set_is_gone(member.is_gone);
  const auto known = state.nodes.find(member.node_id);
  if (known != state.nodes.end()) node.set_endpoint(known->second.info.endpoint);
  return node;
}

v1::Job view_of(const State& state, const Job& job) {
  v1::Job view = head_of(job);
  *view.mutable_argv() = to_job_spec(*job.description).argv();
  if (!has_seats(job.phase)) return view;
  for (const Member& member : job.members) *view.add_nodes() = node_of(state, member);
  return view;
}

}  // namespace accel::agent
