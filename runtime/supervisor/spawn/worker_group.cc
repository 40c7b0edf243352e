#include "runtime/supervisor/spawn/worker_group.h"

#include <algorithm>
#include <csignal>

#include "runtime/supervisor/kernel/process_table.h"

namespace accel::supervisor {
namespace {

WorkerExit named_after(const WorkerSpec& spec) {
  WorkerExit exit;
  exit.global_rank = spec.global_rank;
  exit.local_rank = spec.local_rank;
  exit.program = spec.argv.front();
  return exit;
}

bool ends_a_process(int signal) {
  return signal != SIGCONT && signal != SIGSTOP && signal != SIGTSTP && signal != SIGWINCH;
}

}  // namespace

WorkerExit never_started(const WorkerSpec& spec, const ExecFailure& failure) {
  WorkerExit exit = named_after(spec);
  exit.cause = ExitCause::kExecFailed;
  exit.stage = failure.stage;
  exit.error_number = failure.error_number;
  return exit;
}

WorkerExit unkillable(const Worker& worker) {
  WorkerExit exit = named_after(*worker.spec);
  exit.cause = ExitCause::kUnkillable;
  exit.pid = worker.process->pid();
  return exit;
}

std::optional<WorkerExit> WorkerGroup::start(const WorkerSpec& spec, const SpawnRequest& request) {
  SpawnResult result = forks_ != nullptr ? forks_->spawn(request) : spawn(request);
  if (const auto* failure = std::get_if<ExecFailure>(&result)) return never_started(spec, *failure);
  workers_.push_back({.spec = &spec,
                      .process = std::get<SpawnedProcess>(std::move(result)),
                      .owns_group = request.session != Session::kJoin,
                      .is_alive = true,
                      .program = spec.argv.front(),
                      .cwd = request.cwd});
  return std::nullopt;
}

int WorkerGroup::num_alive() const noexcept {
  return static_cast<int>(std::count_if(
      workers_.begin(), workers_.end(), [](const Worker& worker) { return worker.is_alive; }));
}

std::vector<pid_t> WorkerGroup::live_pids() const {
  std::vector<pid_t> pids;
  for (const Worker& worker : workers_) {
    if (worker.is_alive) pids.push_back(worker.process->pid());
  }
  return pids;
}

Worker* WorkerGroup::find(pid_t pid) noexcept {
  const auto found = std::find_if(workers_.begin(), workers_.end(), [&](const Worker& worker) {
    return worker.is_alive && worker.process->pid() == pid;
  });
  return found == workers_.end() ? nullptr : &*found;
}

void WorkerGroup::signal(Worker& worker, int signal) {
  if (!worker.is_alive) return;
  if (ends_a_process(signal)) worker.was_stopped = true;
  // A child that has not got as far as its own group yet is reached through its pidfd.
  if (!worker.owns_group || system_.signal_group(worker.process->pid(), signal) != 0) {
    system_.signal_process(worker.process->pidfd(), signal);
  }
}

std::string WorkerGroup::describe(const Worker& worker) const {
  const std::string pid = std::to_string(worker.process->pid());
  const auto entry = read_process(system_, worker.process->pid());
  const auto wait = system_.read_file("/proc/" + pid + "/wchan");
  const bool is_waiting = wait && !wait->empty() && *wait != "0";
  return "rank " + std::to_string(worker.spec->global_rank) + " (pid " + pid + "): state " +
         (entry ? entry->state : '?') + (is_waiting ? ", waits in " + *wait : ", runs user code");
}

void WorkerGroup::kill_group(const Worker& worker) {
  if (worker.is_alive && worker.owns_group) system_.signal_group(worker.process->pid(), SIGKILL);
}

WorkerExit WorkerGroup::reap(Worker& worker, bool memory_ran_out) {
  ExitEvidence evidence;
  evidence.exec_failure = worker.process->exec_failure();
  evidence.was_stopped = worker.was_stopped;
  evidence.memory_ran_out = memory_ran_out;
  const pid_t pid = worker.process->pid();
  const WaitStatus status = reap_child(pid).value_or(WaitStatus{.pid = pid});
  if (status.code == CLD_DUMPED) {
    evidence.core_path = core_path_of(system_, pid, status.status, worker.cwd);
  }
  worker.is_alive = false;
  WorkerExit exit = describe_exit(status, evidence);
  if (exit.stage == "chdir") exit.detail = worker.cwd;
  exit.global_rank = worker.spec->global_rank;
  exit.local_rank = worker.spec->local_rank;
  exit.program = worker.program;
  return exit;
}

}  // namespace accel::supervisor
