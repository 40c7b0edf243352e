#include "agent/coordinator/ledger.h"

#include <algorithm>

namespace accel::agent {
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

LedgerState settled(LedgerState ledger, TimePoint now) {
  open_account(ledger, ledger.open, now);
  return ledger;
}

}  // namespace accel::agent
