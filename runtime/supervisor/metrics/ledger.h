// Ledger: where a job's time went.
//
// At each moment one account is open; open_account() closes it and opens another. What was booked
// wrongly until a fact arrived (the time between a failure and its report) is moved afterwards.
//
//   waiting     too few nodes, a back-off, or nothing asked of anybody yet
//   rendezvous  nodes join and are assigned
//   spawn       from Assign to Start: checks, parked workers
//   init        from Start to the first step
//   replay      steps that an earlier generation had made already
//   productive  new steps (all of RUNNING for workers that report no steps)
//   detect      from a failure to its report
//   stop        from the decision to the last Stopped
//
// Threads:  plain values.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "runtime/clock.h"

namespace accel::supervisor {

enum class Account {
  kWaiting,
  kRendezvous,
  kSpawn,
  kInit,
  kReplay,
  kProductive,
  kDetect,
  kStop,
  kClosed,  // the job is over
};

// Those that a job's time goes to, in the order in which they are shown.
inline constexpr std::array kAccountsOfTime = {Account::kWaiting,
                                               Account::kRendezvous,
                                               Account::kSpawn,
                                               Account::kInit,
                                               Account::kReplay,
                                               Account::kProductive,
                                               Account::kDetect,
                                               Account::kStop};
static_assert(kAccountsOfTime.size() == static_cast<std::size_t>(Account::kClosed));

[[nodiscard]] std::string_view name_of(Account account);

struct LedgerState {
  std::array<Duration, static_cast<std::size_t>(Account::kClosed)> booked{};
  Account open = Account::kWaiting;
  TimePoint since{};

  [[nodiscard]] Duration of(Account account) const {
    return booked[static_cast<std::size_t>(account)];
  }
};

void open_account(LedgerState& ledger, Account account, TimePoint now);

// Books the time between `from` and now, as far as it belongs to the open account, on `account`
// instead.
void rebook_since(LedgerState& ledger, Account account, TimePoint from, TimePoint now);

// The job reported no step: what runs without them is productive, so init was.
void book_stepless(LedgerState& ledger);

// All accounts with what is open added; their sum is the job's age.
[[nodiscard]] LedgerState settled(LedgerState ledger, TimePoint now);

// For people: "41.2 s: productive 38.0 s (92 %), rendezvous 0.2 s, ..."; accounts below 50 ms are left out.
[[nodiscard]] std::string describe(const LedgerState& ledger);

}  // namespace accel::supervisor
