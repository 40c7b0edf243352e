#include "runtime/supervisor/stop/restart_policy.h"

#include <algorithm>

namespace accel::supervisor {
namespace {

bool would_fail_again(ExitCause cause) {
  return cause == ExitCause::kExecFailed || cause == ExitCause::kLibraryMissing;
}

// The delay before restart number `quick_failures` + 1 in a row of quick failures.
Milliseconds backoff(const RestartPolicy& policy, int quick_failures, double jitter) {
  if (quick_failures == 0) return Milliseconds::zero();
  constexpr int kMostDoublings = 30;  // keeps the arithmetic far from overflow
  const int doublings = std::min(quick_failures - 1, kMostDoublings);
  const double full = static_cast<double>(policy.backoff_initial.count()) *
                      static_cast<double>(std::int64_t{1} << doublings);
  const double capped = std::min(full, static_cast<double>(policy.backoff_max.count()));
  const double share = 1 - policy.jitter + policy.jitter * jitter;
  return Milliseconds(static_cast<Milliseconds::rep>(capped * share));
}

bool names(const std::vector<ExitCause>& causes, ExitCause cause) {
  return std::find(causes.begin(), causes.end(), cause) != causes.end();
}

}  // namespace

std::string crash_key(const WorkerExit& exit) {
  const int code = exit.signal != 0 ? -exit.signal : exit.exit_code;
  return std::to_string(static_cast<int>(exit.cause)) + ':' + std::to_string(code) + ':' +
         std::to_string(exit.global_rank) + ':' + std::to_string(exit.step);
}

RestartDecision decide_restart(const RestartPolicy& policy,
                               RestartHistory history,
                               const GenerationFacts& facts,
                               double jitter) {
  if (names(policy.fail_after, facts.cause)) return {RestartVerdict::kNotWanted, {}, history};
  if (would_fail_again(facts.cause) && !names(policy.restart_after, facts.cause))
    return {RestartVerdict::kWouldFailAgain, {}, history};
  const bool is_same = !facts.crash.empty() && facts.crash == history.crash;
  history.same_crashes = is_same ? history.same_crashes + 1 : 1;
  history.crash = facts.crash;
  if (policy.max_same_crash > 0 && history.same_crashes >= policy.max_same_crash)
    return {RestartVerdict::kSameCrash, {}, history};
  const bool is_memory = facts.cause == ExitCause::kOutOfMemory && policy.max_restarts > 0;
  if (is_memory && history.out_of_memory >= policy.max_out_of_memory)
    return {RestartVerdict::kMemoryBudgetSpent, {}, history};
  if (!is_memory && history.restarts >= policy.max_restarts)
    return {RestartVerdict::kBudgetSpent, {}, history};
  if (facts.made_progress || facts.lived >= policy.stable_after) history.quick_failures = 0;
  const Milliseconds delay = backoff(policy, history.quick_failures, jitter);
  ++(is_memory ? history.out_of_memory : history.restarts);
  ++history.quick_failures;
  return {RestartVerdict::kRestart, delay, history};
}

}  // namespace accel::supervisor
