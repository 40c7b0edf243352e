#include "agent/shims/heard_workers.h"

#include "agent/shims/job_report.h"
#include "agent/shims/worker_end.h"
#include "runtime/printable.h"

namespace accel::agent {
namespace {

v1::Worker* worker_of(v1::Job& job, int local_rank) {
  const bool is_there = local_rank >= 0 && local_rank < job.workers_size();
  return is_there ? job.mutable_workers(local_rank) : nullptr;
}

void set_generation(v1::Job& job, int generation) {
  job.set_generation(static_cast<std::uint64_t>(generation));
  job.set_restarts(static_cast<std::uint32_t>(generation));
}

}  // namespace

void show_started(v1::Job& job, const supervisor::GenerationStarted& started, bool is_stopping) {
  set_generation(job, started.generation);
  if (!is_stopping) job.set_state(v1::JOB_STATE_RUNNING);
  job.clear_workers();
  for (std::size_t i = 0; i < started.pids.size(); ++i) {
    v1::Worker& worker = *job.add_workers();
    worker.set_rank(static_cast<std::uint32_t>(i));
    worker.set_local_rank(static_cast<std::uint32_t>(i));
    worker.set_pid(started.pids[i]);
  }
}

void show_standing(v1::Job& job, const supervisor::Snapshot& snapshot, bool is_stopping) {
  const bool is_same = static_cast<std::uint64_t>(snapshot.generation) == job.generation();
  set_generation(job, snapshot.generation);
  if (!snapshot.workers.empty() && !is_stopping) job.set_state(v1::JOB_STATE_RUNNING);
  const google::protobuf::RepeatedPtrField<v1::Worker> before = job.workers();
  job.clear_workers();
  for (const supervisor::WorkerSnapshot& seen : snapshot.workers) {
    const int index = job.workers_size();
    v1::Worker& worker = *job.add_workers();
    if (is_same && index < before.size()) worker = before[index];
    worker.set_rank(static_cast<std::uint32_t>(seen.global_rank));
    worker.set_local_rank(static_cast<std::uint32_t>(seen.local_rank));
    worker.set_pid(seen.is_alive ? seen.pid : 0);
  }
  for (const supervisor::WorkerExit& exit : snapshot.exits) {
    v1::Worker* worker = worker_of(job, exit.local_rank);
    if (worker != nullptr && !worker->has_exit()) *worker->mutable_exit() = describe_end(exit);
  }
}

void show_steps(v1::Job& job, const supervisor::JobCounters& counters) {
  for (const supervisor::JobCounters::Sight& sight : counters.sights()) {
    v1::Worker* const worker = worker_of(job, sight.local_rank);
    if (worker == nullptr) continue;
    worker->set_step(sight.step);
    if (sight.seconds_per_step > 0) worker->set_step_seconds(sight.seconds_per_step);
  }
}

void show_exit(v1::Job& job, const supervisor::WorkerExit& exit) {
  v1::Worker* worker = worker_of(job, exit.local_rank);
  if (worker == nullptr) return;
  worker->set_pid(0);
  *worker->mutable_exit() = describe_end(exit);
}

void show_outcome(v1::Job& job, const supervisor::JobOutcome& outcome, bool is_stopping) {
  for (const supervisor::WorkerExit& exit : outcome.exits) show_exit(job, exit);
  const bool is_cancelled = !outcome.success && is_stopping && !outcome.first_failure;
  job.set_state(outcome.success ? v1::JOB_STATE_SUCCEEDED
                : is_cancelled  ? v1::JOB_STATE_CANCELLED
                                : v1::JOB_STATE_FAILED);
  job.set_exit_code(outcome.exit_code);
  job.set_reason(printable(outcome.reason));
  job.set_restarts(static_cast<std::uint32_t>(outcome.restarts));
  add_to_report(job, describe_outcome(outcome));
}

void show_loss(v1::Job& job, const Error& error) {
  for (v1::Worker& worker : *job.mutable_workers()) worker.set_pid(0);
  job.set_state(v1::JOB_STATE_FAILED);
  job.set_exit_code(error_info(error.code()).exit_status);
  job.set_reason(printable(error.message()));
  add_to_report(job, error.render("accel-agent"));
}

}  // namespace accel::agent
