// Leader: what the launcher of machine 0 decides for a job on several machines, beside its own part.
//
// Pure like Machine: it reads the board, and what it has decided goes onto the board, where every
// launcher finds it, its own too.
//
//   phase       what it sees                              next        what it decides
//   ----------  ----------------------------------------  ----------  -------------------------------
//   gathering   every machine rank is claimed             preparing   the plan
//   gathering   a claim whose launcher is silent          gathering   the claim is void
//   gathering   a fault, its own user's stop, the limit   settled     the verdict
//   preparing   every machine is ready                    running     go
//   preparing   a fault                                   settled     the verdict
//   preparing   stop; a machine is silent                 running     (the ends are waited for)
//   running     a machine is silent                       running     stop: it is lost
//   running     every machine has ended or is lost        settled     the verdict
//   settled     every machine has left, or time is over   done
//
// A machine is silent when its beat has not changed for `lost_after` while we looked: time in which we
// were stopped ourselves does not count, and neither does that of a launcher that its user has stopped,
// until `suspended_limit`.
//
// A rank whose peers vanish fails at once, and their machine is lost seconds later. So the first
// failure is only named when all have ended: a machine that fell silent before the first failure was
// told of is the cause.
//
// Threads:  one at a time.
// Source:   docs/internals/rendezvous.md "Without a daemon"; tests/unit/launcher/machines/leader_test.cc.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "launcher/start/machines/board/board.h"
#include "launcher/start/machines/board/records.h"
#include "launcher/start/machines/board/timing.h"
#include "launcher/text/program.h"
#include "runtime/clock.h"

namespace accel::launcher {

struct LeaderOptions {
  Duration join_limit = std::chrono::seconds(600);  // from the start to the last claim
  // Of it until the first look: the name of machine 0 had no address. A second is left in any case.
  Duration waited{};
  Duration lost_after = kLostAfter;
  Duration suspended_limit = kSuspendedLimit;
  // Told of a fault or an end before the job began, machines that come late learn of it so long.
  Duration late_joiners = std::chrono::seconds(10);
  Duration last_words = std::chrono::seconds(5);  // for those that joined to read the verdict
  int restart_count = 0;                          // so far
  int max_restarts = 0;
  Program program = Program::kLaunch;
};

class Leader {
 public:
  // card: of machine 0.
  Leader(MachineCard card, LeaderOptions options);

  void add_to(supervisor::StoreExchange& exchange) const;
  void look(const Board& board, TimePoint now);

  // All have read the verdict, or will not.
  [[nodiscard]] bool is_done() const { return phase_ == Phase::kDone; }
  [[nodiscard]] const std::optional<Verdict>& verdict() const { return verdict_; }
  // "machine 1, machine 3"; empty when all have joined.
  [[nodiscard]] std::string missing() const;
  [[nodiscard]] int num_joined() const;

 private:
  enum class Phase { kGathering, kPreparing, kRunning, kSettled, kDone };

  struct Member {
    std::optional<MachineCard> card;
    std::string claim;     // as it stands on the board
    bool is_void = false;  // the claim is being taken back
    std::string beat;
    TimePoint beat_at{};
    TimePoint suspended_at{};  // beat: kSuspendedBeat
    std::optional<EndNote> end;
    bool is_ready = false;
    bool is_lost = false;
    bool has_left = false;
  };

  void gather(const Board& board, TimePoint now);
  void prepare(const Board& board);
  void run(const Board& board, TimePoint now);
  void await_leaving(const Board& board, TimePoint now);
  void read_claims(const Board& board, TimePoint now);
  void read_beats(const Board& board, TimePoint now);
  void lose(int rank, TimePoint now);
  void decide();
  [[nodiscard]] std::optional<int> first_lost() const;
  [[nodiscard]] Verdict verdict_on_stop(const StopNote& note) const;
  [[nodiscard]] bool have_all_saved() const;
  void settle(Verdict verdict, TimePoint now);
  [[nodiscard]] std::string describe(int rank) const;

  MachineCard card_;
  LeaderOptions options_;
  Phase phase_ = Phase::kGathering;
  std::vector<Member> members_;
  std::optional<TimePoint> began_at_;
  TimePoint looked_at_{};
  std::optional<JobPlan> plan_;
  bool is_go_ = false;
  std::optional<StopNote> own_stop_;  // written by us: a machine is lost
  std::optional<StopNote> stop_;      // that stands on the board
  TimePoint stop_at_{};
  std::optional<Verdict> verdict_;
  TimePoint settled_at_{};
  bool is_before_begin_ = true;  // the verdict came before the plan
};

}  // namespace accel::launcher
