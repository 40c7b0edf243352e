#include "runtime/supervisor/metrics/ledger.h"

#include <algorithm>
#include <utility>

namespace accel::supervisor {
namespace {

Duration* slot_of(LedgerState& ledger, Account account) {
  const auto index = static_cast<std::size_t>(account);
  return index < ledger.booked.size() ? &ledger.booked[index] : nullptr;
}

}  // namespace

std::string_view name_of(Account account) {
  switch (account) {
    case Account::kWaiting:
      return "waiting";
    case Account::kRendezvous:
      return "rendezvous";
    case Account::kSpawn:
      return "spawn";
    case Account::kInit:
      return "init";
    case Account::kReplay:
      return "replay";
    case Account::kProductive:
      return "productive";
    case Account::kDetect:
      return "detect";
    case Account::kStop:
      return "stop";
    case Account::kClosed:
      break;
  }
  return "closed";
}

void open_account(LedgerState& ledger, Account account, TimePoint now) {
  if (Duration* slot = slot_of(ledger, ledger.open)) *slot += now - ledger.since;
  ledger.open = account;
  ledger.since = now;
}

void rebook_since(LedgerState& ledger, Account account, TimePoint from, TimePoint now) {
  from = std::clamp(from, ledger.since, now);
  if (Duration* slot = slot_of(ledger, ledger.open)) *slot += from - ledger.since;
  if (Duration* slot = slot_of(ledger, account)) *slot += now - from;
  ledger.since = now;
}

void book_stepless(LedgerState& ledger) {
  if (ledger.open == Account::kInit) ledger.open = Account::kProductive;
  *slot_of(ledger, Account::kProductive) +=
      std::exchange(*slot_of(ledger, Account::kInit), Duration::zero());
}

std::string describe(const LedgerState& ledger) {
  using std::chrono::milliseconds;
  const auto seconds = [](Duration time) {
    const auto tenths = (std::chrono::duration_cast<milliseconds>(time).count() + 50) / 100;
    return std::to_string(tenths / 10) + '.' + std::to_string(tenths % 10) + " s";
  };
  Duration all{};
  for (const Duration booked : ledger.booked) all += booked;
  std::string text;
  const auto name_one = [&](Account account) {
    const Duration booked = ledger.of(account);
    if (booked < milliseconds(50)) return;
    text += (text.empty() ? ": " : ", ") + std::string(name_of(account)) + ' ' + seconds(booked);
    if (account == Account::kProductive) {
      text += " (" + std::to_string(booked.count() * 100 / all.count()) + " %)";
    }
  };
  name_one(Account::kProductive);
  for (int i = 0; i < static_cast<int>(Account::kClosed); ++i) {
    const auto account = static_cast<Account>(i);
    if (account != Account::kProductive) name_one(account);
  }
  return seconds(all) + text;
}

LedgerState settled(LedgerState ledger, TimePoint now) {
  open_account(ledger, ledger.open, now);
  return ledger;
}

}  // namespace accel::supervisor
