// JobAccounts: where the time of a job on one node went, by the events of its shim.
//
// The accounts are those of jobs over several nodes (coordinator/state/ledger.h), as far as one node has them:
//
//   spawn --all workers started--> init --a step--> replay or productive
//     ^                              |                    |
//     |                              '--a worker failed, the last one ended, somebody asks--> stop
//     '--the back-off is over-- waiting <--another generation follows------------------------'
//
// Steps are seen in snapshots, which the owner of the shim asks for while wants_snapshots(). The shim stops the others
// of a worker that failed at once, so `detect` holds nothing but the silence of a hang. What happened while no agent was
// there is booked when the next one hears of it; only the end of a worker brings its time along.
//
// Threads:  plain values, no clock.
#pragma once

#include <cstdint>

#include "accel/v1/record.pb.h"
#include "agent/coordinator/state/ledger.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::agent {

class JobAccounts {
 public:
  // The shim is about to be started.
  void begin(TimePoint now) { ledger_ = {.booked = {}, .open = Account::kSpawn, .since = now}; }

  // Whether another account is open now.
  bool hear(const supervisor::HostEvent& event, TimePoint now);
  void ask_to_stop(TimePoint now);
  void close(TimePoint now);

  [[nodiscard]] bool wants_snapshots() const {
    return ledger_.open == Account::kInit || ledger_.open == Account::kReplay;
  }
  [[nodiscard]] const LedgerState& ledger() const { return ledger_; }

  // As an agent leaves them to the next one. Of another boot the clock began anew: the time in between is on no account.
  [[nodiscard]] v1::Accounts to_record() const;
  [[nodiscard]] static JobAccounts from_record(const v1::Accounts& record,
                                               bool is_same_boot,
                                               TimePoint now);

 private:
  void hear_one(const supervisor::GenerationStarted& started, TimePoint now);
  void hear_one(const supervisor::Snapshot& snapshot, TimePoint now);
  void hear_one(const supervisor::WorkerExit& exit, TimePoint now);
  void hear_one(const supervisor::Restarting& restarting, TimePoint now);
  void hear_one(const supervisor::Hung& hung, TimePoint now);
  template <typename Other>
  void hear_one(const Other&, TimePoint) {}
  [[nodiscard]] bool is_running() const {
    return wants_snapshots() || ledger_.open == Account::kProductive;
  }

  LedgerState ledger_;
  std::int64_t start_step_ = -1;  // highest step before this generation: up to it, it replays
  std::int64_t max_step_ = -1;    // highest step of any generation; -1: none was reported
  int num_alive_ = 0;
  Duration back_off_{};  // of the account `waiting`
  bool is_asked_to_stop_ = false;
};

}  // namespace accel::agent
