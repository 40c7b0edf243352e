// JobAccounts: where the time of a job on one node went, by the events of its shim.
//
// The accounts are those of jobs over several nodes (ledger.h), as far as one node has them:
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

#include "runtime/supervisor/metrics/ledger.h"
#include "runtime/supervisor/protocol/frames.h"

namespace accel::supervisor {

class JobAccounts {
 public:
  // All of it, so that one owner may leave it to the next one.
  struct Books {
    LedgerState ledger;
    std::int64_t start_step = -1;  // highest step before this generation: up to it, it replays
    std::int64_t max_step = -1;    // highest step of any generation; -1: none was reported
    bool is_asked_to_stop = false;
  };
  JobAccounts() = default;
  explicit JobAccounts(const Books& books) : books_(books) {}

  // The shim is about to be started.
  void begin(TimePoint now) {
    books_.ledger = {.booked = {}, .open = Account::kSpawn, .since = now};
  }

  // Whether another account is open now.
  bool hear(const HostEvent& event, TimePoint now);
  void ask_to_stop(TimePoint now);
  void close(TimePoint now);

  [[nodiscard]] bool wants_snapshots() const {
    return books_.ledger.open == Account::kInit || books_.ledger.open == Account::kReplay;
  }
  [[nodiscard]] const LedgerState& ledger() const { return books_.ledger; }
  [[nodiscard]] const Books& books() const { return books_; }

 private:
  void hear_one(const GenerationStarted& started, TimePoint now);
  void hear_one(const Snapshot& snapshot, TimePoint now);
  void hear_one(const WorkerExit& exit, TimePoint now);
  void hear_one(const Restarting& restarting, TimePoint now);
  void hear_one(const Hung& hung, TimePoint now);
  template <typename Other>
  void hear_one(const Other&, TimePoint) {}
  [[nodiscard]] bool is_running() const {
    return wants_snapshots() || books_.ledger.open == Account::kProductive;
  }

  Books books_;
  int num_alive_ = 0;
  Duration back_off_{};  // of the account `waiting`
};

}  // namespace accel::supervisor
