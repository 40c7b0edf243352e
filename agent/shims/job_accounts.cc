#include "agent/shims/job_accounts.h"

#include <algorithm>
#include <limits>
#include <variant>

namespace accel::agent {

using supervisor::ExitCause;

bool JobAccounts::hear(const supervisor::HostEvent& event, TimePoint now) {
  const Account before = ledger_.open;
  if (before == Account::kClosed) return false;
  std::visit([&](const auto& one) { hear_one(one, now); }, event);
  return ledger_.open != before;
}

void JobAccounts::hear_one(const supervisor::GenerationStarted& started, TimePoint now) {
  num_alive_ = static_cast<int>(started.pids.size());
  start_step_ = max_step_;
  if (is_asked_to_stop_) return;
  if (ledger_.open == Account::kWaiting)
    rebook_since(ledger_, Account::kSpawn, ledger_.since + back_off_, now);
  open_account(ledger_, Account::kInit, now);
}

void JobAccounts::hear_one(const supervisor::Snapshot& snapshot, TimePoint now) {
  constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
  num_alive_ = 0;
  std::int64_t step = -1;
  for (const supervisor::WorkerSnapshot& worker : snapshot.workers) {
    if (!worker.is_alive) continue;
    ++num_alive_;
    if (worker.beats > 0)
      step = std::max(step, static_cast<std::int64_t>(std::min(worker.step, kMost)));
  }
  if (step < 0) return;
  if (wants_snapshots()) {
    const Account account = step <= start_step_ ? Account::kReplay : Account::kProductive;
    if (account != ledger_.open) open_account(ledger_, account, now);
  }
  max_step_ = std::max(max_step_, step);
}

void JobAccounts::hear_one(const supervisor::WorkerExit& exit, TimePoint now) {
  max_step_ = std::max(max_step_, exit.step);
  --num_alive_;
  const bool is_over = exit.cause != ExitCause::kOk || num_alive_ <= 0;
  if (!is_running() || !is_over) return;
  const TimePoint seen_at{std::chrono::duration_cast<Duration>(exit.seen_at)};
  open_account(ledger_, Account::kStop, std::clamp(seen_at, ledger_.since, now));
}

void JobAccounts::hear_one(const supervisor::Restarting& restarting, TimePoint now) {
  back_off_ = restarting.delay;
  const bool waits = restarting.delay > std::chrono::milliseconds::zero();
  if (!is_asked_to_stop_) open_account(ledger_, waits ? Account::kWaiting : Account::kSpawn, now);
}

void JobAccounts::hear_one(const supervisor::Hung& hung, TimePoint now) {
  if (!is_running()) return;
  rebook_since(ledger_, Account::kDetect, now - hung.silent_for, now);
  open_account(ledger_, Account::kStop, now);
}

void JobAccounts::ask_to_stop(TimePoint now) {
  is_asked_to_stop_ = true;
  const bool is_late = ledger_.open == Account::kStop || ledger_.open == Account::kClosed;
  if (!is_late) open_account(ledger_, Account::kStop, now);
}

void JobAccounts::close(TimePoint now) {
  if (ledger_.open == Account::kClosed) return;
  open_account(ledger_, Account::kClosed, now);
  if (max_step_ < 0) book_stepless(ledger_);
}

v1::Accounts JobAccounts::to_record() const {
  v1::Accounts record;
  for (const Duration booked : ledger_.booked)
    record.add_booked_ns(std::chrono::nanoseconds(booked).count());
  record.set_open(static_cast<std::uint32_t>(ledger_.open));
  record.set_since_ns(std::chrono::nanoseconds(ledger_.since.time_since_epoch()).count());
  record.set_start_step(start_step_);
  record.set_max_step(max_step_);
  record.set_is_asked_to_stop(is_asked_to_stop_);
  return record;
}

JobAccounts JobAccounts::from_record(const v1::Accounts& record, bool is_same_boot, TimePoint now) {
  JobAccounts made;
  LedgerState& ledger = made.ledger_;
  const auto num_booked =
      std::min(ledger.booked.size(), static_cast<std::size_t>(record.booked_ns_size()));
  for (std::size_t i = 0; i < num_booked; ++i)
    ledger.booked[i] = std::chrono::nanoseconds(record.booked_ns(static_cast<int>(i)));
  const bool is_known = record.open() <= static_cast<std::uint32_t>(Account::kClosed);
  ledger.open = is_known ? static_cast<Account>(record.open()) : Account::kWaiting;
  const TimePoint since{std::chrono::nanoseconds(record.since_ns())};
  const bool is_usable = is_same_boot && record.booked_ns_size() > 0;
  ledger.since = is_usable ? std::min(since, now) : now;
  made.start_step_ = record.start_step();
  made.max_step_ = record.max_step();
  made.is_asked_to_stop_ = record.is_asked_to_stop();
  return made;
}

}  // namespace accel::agent
