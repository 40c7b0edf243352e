// What is written down, and when: a job when it is accepted, at COMMIT, when it is to be stopped and when it ends (all
// synced, and nobody hears of them before), and when it was decided that it goes on; a node when it is put aside or taken
// back.

#include <utility>

#include "agent/coordinator/decisions/turn.h"
#include "agent/coordinator/state/record_text.h"

namespace accel::agent {
namespace {

std::uint64_t persist(Turn& turn, Record record, Sync sync) {
  const std::uint64_t ticket = turn.state.next_ticket++;
  turn.actions.emplace_back(Persist{ticket, std::move(record), sync == Sync::kYes});
  return ticket;
}

// What could not be written meanwhile. A commit under way is not touched: it is written anew anyway.
void write_all_again(Turn& turn) {
  for (const auto& [uuid, job] : turn.state.jobs) {
    if (job.phase != JobPhase::kPending && !job.commit_ticket) persist_job(turn, job, Sync::kNo);
  }
  for (const auto& [id, node] : turn.state.nodes) {
    if (node.is_drained || node.quarantine.ttl.count() > 0) persist_node(turn, node);
  }
}

void take_accepted(Turn& turn, Job& job, bool ok) {
  const JobUuid uuid = uuid_of(job);
  const std::string request_id = job.request_id;
  if (ok) {
    turn.actions.emplace_back(JobReply{request_id, uuid, true, "", ""});
    return begin_gathering(turn, job, "waiting for nodes");
  }
  turn.actions.emplace_back(
      JobReply{request_id, uuid, false, "the job cannot be written down", kWriteRemedy});
  turn.state.jobs.erase(uuid);
}

}  // namespace

std::uint64_t persist_job(Turn& turn, const Job& job, Sync sync) {
  return persist(turn, job_record(job, turn.state, turn.now), sync);
}

void persist_node(Turn& turn, const Node& node) {
  persist(turn, node_record(node, turn.now), Sync::kNo);
}

void persist_epoch(Turn& turn) {
  persist(turn, epoch_record(turn.state.epoch), Sync::kYes);
}

void forget_job(Turn& turn, const JobUuid& uuid) {
  turn.state.jobs.erase(uuid);
  persist(turn, forgotten_job(uuid), Sync::kNo);
}

void take_persisted(Turn& turn, const Persisted& answer) {
  State& state = turn.state;
  if (state.journal_full == answer.ok) {
    state.journal_full = !answer.ok;
    report(turn,
           answer.ok ? ReportKind::kJournalBack : ReportKind::kJournalFull,
           "",
           "",
           answer.ok ? "the journal can be written again"
                     : "the journal cannot be written: new jobs are refused, running ones kept");
    if (answer.ok) write_all_again(turn);
  }
  if (const auto stop = state.stops.extract(answer.ticket)) {
    return take_stop_written(turn, stop.mapped(), answer.ok);
  }
  const auto ticket = state.tickets.find(answer.ticket);
  if (ticket == state.tickets.end()) return;
  const JobUuid uuid = ticket->second;
  state.tickets.erase(ticket);
  Job* job = find_job(state, uuid);
  if (!job) return;
  if (job->ending && job->ending->ticket == answer.ticket) return take_ended(turn, *job, answer.ok);
  if (job->phase == JobPhase::kPending) return take_accepted(turn, *job, answer.ok);
  if (job->commit_ticket == answer.ticket && job->phase == JobPhase::kPreparing) {
    take_committed(turn, *job, answer.ok);
  }
}

}  // namespace accel::agent
