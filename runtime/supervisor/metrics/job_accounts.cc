#include "runtime/supervisor/metrics/job_accounts.h"

#include <algorithm>
#include <limits>
#include <variant>

namespace accel::supervisor {

bool JobAccounts::hear(const HostEvent& event, TimePoint now) {
  const Account before = books_.ledger.open;
  if (before == Account::kClosed) return false;
  std::visit([&](const auto& one) { hear_one(one, now); }, event);
  return books_.ledger.open != before;
}

void JobAccounts::hear_one(const GenerationStarted& started, TimePoint now) {
  num_alive_ = static_cast<int>(started.pids.size());
  books_.start_step = books_.max_step;
  if (books_.is_asked_to_stop) return;
  if (books_.ledger.open == Account::kWaiting)
    rebook_since(books_.ledger, Account::kSpawn, books_.ledger.since + back_off_, now);
  open_account(books_.ledger, Account::kInit, now);
}

void JobAccounts::hear_one(const Snapshot& snapshot, TimePoint now) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  num_alive_ = 0;
  std::int64_t step = -1;
  for (const WorkerSnapshot& worker : snapshot.workers) {
    if (!worker.is_alive) continue;
    ++num_alive_;
    if (worker.beats > 0)
      step = std::max(step, static_cast<std::int64_t>(std::min(worker.step, kMost)));
  }
  if (step < 0) return;
  if (wants_snapshots()) {
    const Account account = step <= books_.start_step ? Account::kReplay : Account::kProductive;
    if (account != books_.ledger.open) open_account(books_.ledger, account, now);
  }
  books_.max_step = std::max(books_.max_step, step);
}

void JobAccounts::hear_one(const WorkerExit& exit, TimePoint now) {
  books_.max_step = std::max(books_.max_step, exit.step);
  --num_alive_;
  const bool is_over = exit.cause != ExitCause::kOk || num_alive_ <= 0;
  if (!is_running() || !is_over) return;
  const TimePoint seen_at{std::chrono::duration_cast<Duration>(exit.seen_at)};
  open_account(books_.ledger, Account::kStop, std::clamp(seen_at, books_.ledger.since, now));
}

void JobAccounts::hear_one(const Restarting& restarting, TimePoint now) {
  back_off_ = restarting.delay;
  const bool waits = restarting.delay > std::chrono::milliseconds::zero();
  if (!books_.is_asked_to_stop)
    open_account(books_.ledger, waits ? Account::kWaiting : Account::kSpawn, now);
}

void JobAccounts::hear_one(const Hung& hung, TimePoint now) {
  if (!is_running()) return;
  rebook_since(books_.ledger, Account::kDetect, now - hung.silent_for, now);
  open_account(books_.ledger, Account::kStop, now);
}

void JobAccounts::ask_to_stop(TimePoint now) {
  books_.is_asked_to_stop = true;
  const bool is_late =
      books_.ledger.open == Account::kStop || books_.ledger.open == Account::kClosed;
  if (!is_late) open_account(books_.ledger, Account::kStop, now);
}

void JobAccounts::close(TimePoint now) {
  if (books_.ledger.open == Account::kClosed) return;
  open_account(books_.ledger, Account::kClosed, now);
  if (books_.max_step < 0) book_stepless(books_.ledger);
}

}  // namespace accel::supervisor
