// Machine: what the launcher of one machine does for a job on several.
//
// A pure step machine: it says what to write into the store and read from it, is given what was read,
// and answers with what is to be done. No clock, no socket, no process; so a test plays whole jobs.
//
//   phase      what happens                        next       what is done
//   ---------  ----------------------------------  ---------  ---------------------------------------
//   meeting    the card of machine 0 is there      claiming   it is compared with ours
//   meeting    it says otherwise than ours         refused    fault written for all
//   claiming   our claim stands                    waiting
//   claiming   another launcher's claim stands     refused    fault written for all
//   claiming   ... and the rank was not given      claiming   the next free place is tried
//   claiming   ... and every place has its plan    refused    fault written for all
//   waiting    the plan is there                   preparing  workers prepared
//   preparing  they are ready                      ready      ready written
//   preparing  they cannot be                      over       stop and end written
//   ready      all are                             running    workers started
//   running    a worker fails                      running    stop written; the shim stops the others
//   running    stop is there                       running    workers stopped
//   running    all workers have ended              over       end written
//   any        our user asks to stop               -          stop written; before the plan: settled
//   any        the verdict is there                settled    workers stopped if they still run
//   settled    left is written                     gone       kLeave, or kBeginAgain
//   refused    the fault is written                gone       kLeave with the error
//   any        the store is gone                   gone       the caller ends it with fail()
//
// Threads:  one at a time.
// Source:   docs/internals/rendezvous.md "Without a daemon"; tests/unit/launcher/machines/machine_test.cc.
#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <accel/result.h>

#include "launcher/start/machines/board/board.h"
#include "launcher/start/machines/board/records.h"
#include "launcher/text/program.h"
#include "runtime/supervisor/protocol/job_outcome.h"
#include "runtime/supervisor/store/store_client.h"

namespace accel::launcher {

struct PrepareWorkers {
  int first_rank = 0;
  int world_size = 1;
  int restart_count = 0;
};
struct StartWorkers {};
struct StopWorkers {
  int signal = 0;  // of our own user; 0: another machine is the cause
};
struct SayLine {
  std::string text;
};
struct BeginAgain {};  // in a new generation, with a new store
struct Leave {};       // the part of this machine is over; see verdict() and error()
using MachineAction =
    std::variant<PrepareWorkers, StartWorkers, StopWorkers, SayLine, BeginAgain, Leave>;
using MachineActions = std::vector<MachineAction>;

class Machine {
 public:
  // draws_rank: the rank of `card` is not known yet; it takes the first free place, as a rule in the
  // order of joins. program, port_flag: of MachinesSettings, whose words errors use.
  Machine(MachineCard card, bool draws_rank, Program program, std::string port_flag);

  // Adds what is to be written and read next.
  void add_to(supervisor::StoreExchange& exchange) const;
  // What came of it.
  [[nodiscard]] MachineActions take(const Board& board);

  void workers_ready();
  void workers_not_ready(const Error& why);
  void worker_failed(const supervisor::WorkerExit& exit);
  // One that WorkerExit::is_preempted(): the job stops as after a signal. The shim stops the workers here.
  void worker_preempted(const supervisor::WorkerExit& exit);
  void workers_ended(const supervisor::JobOutcome& outcome);
  // The first signal of our user; `name` as in "SIGINT".
  [[nodiscard]] MachineActions asked_to_stop(int signal, const std::string& name);
  // Our user has stopped us (Ctrl-Z), or lets us go on.
  void suspend(bool is_suspended) { is_suspended_ = is_suspended; }
  // Nothing can be agreed on any more: the store is gone, or nobody came.
  [[nodiscard]] MachineActions fail(Error why);

  [[nodiscard]] const MachineCard& card() const { return card_; }
  [[nodiscard]] const std::optional<JobPlan>& plan() const { return plan_; }
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  [[nodiscard]] const std::optional<Error>& error() const { return error_; }
  // The machine took part: its rank is its own.
  [[nodiscard]] bool has_joined() const { return phase_ >= Phase::kWaiting; }
  [[nodiscard]] bool is_running() const { return phase_ == Phase::kRunning; }
  [[nodiscard]] bool is_gone() const { return phase_ == Phase::kGone; }

 private:
  enum class Phase {
    kMeeting,
    kClaiming,
    kWithdrawing,
    kRefused,
    kWaiting,
    kPreparing,
    kReady,
    kRunning,
    kOver,
    kSettled,
    kGone
  };

  void meet(const Board& board);
  void add_claim(supervisor::StoreExchange& exchange) const;
  void claim(const Board& board);
  void take_place(const Board& board);
  void refuse(Error why);
  void note_stop(StopNote note);
  void note_failure(const supervisor::WorkerExit& exit);
  void read_plan(const Board& board, MachineActions& actions);
  void obey_stop(const Board& board, MachineActions& actions);
  void settle(const Board& board, MachineActions& actions);
  [[nodiscard]] MachineActions leave();
  [[nodiscard]] std::string key(std::string_view prefix) const {
    return board_key::of(prefix, card_.rank);
  }

  MachineCard card_;
  bool draws_rank_;
  Program program_;
  std::string port_flag_;
  int first_place_ = 0;  // draws_rank_: from which on we look for a free one; 0: not known yet
  Phase phase_ = Phase::kMeeting;
  std::string claim_;  // our card as it is written; empty: no place was tried yet
  std::uint64_t beats_ = 0;
  bool is_suspended_ = false;
  bool is_stopping_ = false;  // the workers were told
  std::optional<JobPlan> plan_;
  std::optional<StopNote> stop_;
  std::optional<EndNote> end_;
  std::optional<Verdict> verdict_;
  std::optional<Error> error_;
};

}  // namespace accel::launcher
