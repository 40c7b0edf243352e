#include "agent/shims/accounts_record.h"

#include <algorithm>

namespace accel::agent {

using supervisor::Account;
using supervisor::JobAccounts;
using supervisor::LedgerState;

v1::Accounts to_record(const JobAccounts& accounts) {
  const JobAccounts::Books& books = accounts.books();
  v1::Accounts record;
  for (const Duration booked : books.ledger.booked)
    record.add_booked_ns(std::chrono::nanoseconds(booked).count());
  record.set_open(static_cast<std::uint32_t>(books.ledger.open));
  record.set_since_ns(std::chrono::nanoseconds(books.ledger.since.time_since_epoch()).count());
  record.set_start_step(books.start_step);
  record.set_max_step(books.max_step);
  record.set_is_asked_to_stop(books.is_asked_to_stop);
  return record;
}

JobAccounts accounts_of(const v1::Accounts& record, bool is_same_boot, TimePoint now) {
  JobAccounts::Books books;
  LedgerState& ledger = books.ledger;
  const auto num_booked =
      std::min(ledger.booked.size(), static_cast<std::size_t>(record.booked_ns_size()));
  for (std::size_t i = 0; i < num_booked; ++i)
    ledger.booked[i] = std::chrono::nanoseconds(record.booked_ns(static_cast<int>(i)));
  const bool is_known = record.open() <= static_cast<std::uint32_t>(Account::kClosed);
  ledger.open = is_known ? static_cast<Account>(record.open()) : Account::kWaiting;
  const TimePoint since{std::chrono::nanoseconds(record.since_ns())};
  const bool is_usable = is_same_boot && record.booked_ns_size() > 0;
  ledger.since = is_usable ? std::min(since, now) : now;
  books.start_step = record.start_step();
  books.max_step = record.max_step();
  books.is_asked_to_stop = record.is_asked_to_stop();
  return JobAccounts(books);
}

}  // namespace accel::agent
