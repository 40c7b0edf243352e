// A part's workers after a take-over: what the agent before had heard, what nobody heard, and in which order it is told.

#include "agent/parts/node_workers.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <sys/eventfd.h>

#include "runtime/unique_fd.h"

namespace accel::agent::node_workers_test {
namespace {

using supervisor::ExitCause;
using supervisor::GenerationEnded;
using supervisor::HostEvent;
using supervisor::Snapshot;
using supervisor::WorkerExit;
using testing::ElementsAre;

constexpr int kGeneration = 3;

// A shim's side without a process: gives its events one after the other, a snapshot for each request for one.
class ScriptedHost final : public supervisor::WorkerHost {
 public:
  struct Script {
    std::deque<HostEvent> events;
    Snapshot now;  // what it answers
    std::vector<supervisor::HostRequest> requests;
    std::string killed;      // why
    int num_unkillable = 0;  // after that
    bool is_proved = true;   // that nothing else is left
    int fd = -1;
    void wake() const { (void)::eventfd_write(fd, 1); }
  };
  explicit ScriptedHost(Script& script) : script_(script), fd_(::eventfd(0, EFD_CLOEXEC)) {
    script_.fd = fd_.get();
  }

  [[nodiscard]] int event_fd() const override { return fd_.get(); }
  Result<std::optional<HostEvent>> next_event() override {
    if (!script_.killed.empty()) return Error(ErrorCode::kShimLost, script_.killed);
    if (script_.events.empty()) return std::optional<HostEvent>();
    HostEvent event = std::move(script_.events.front());
    script_.events.pop_front();
    return std::optional(std::move(event));
  }
  void request(const supervisor::HostRequest& request) override {
    script_.requests.push_back(request);
    if (std::holds_alternative<supervisor::TakeSnapshot>(request))
      script_.events.emplace_back(script_.now);
  }
  void kill_shim(const std::string& why) override {
    script_.killed = why;
    script_.wake();
  }
  [[nodiscard]] std::uint64_t bytes_received() const override { return 0; }
  [[nodiscard]] int num_unkillable() const override { return script_.num_unkillable; }
  [[nodiscard]] bool is_end_proved() const override { return script_.is_proved; }

 private:
  Script& script_;
  UniqueFd fd_;
};

WorkerExit exit_of(int local_rank, ExitCause cause, const std::string& tail = "") {
  WorkerExit exit;
  exit.local_rank = exit.global_rank = local_rank;
  exit.generation = kGeneration;
  exit.cause = cause;
  exit.tail = tail;
  return exit;
}

Snapshot snapshot_of(const std::string& state, std::vector<WorkerExit> exits = {}) {
  Snapshot snapshot;
  snapshot.state = state;
  snapshot.generation = kGeneration;
  snapshot.store_port = 4711;
  snapshot.exits = std::move(exits);
  return snapshot;
}

class NodeWorkersTest : public testing::Test {
 protected:
  // Takes a shim over that says `first`, then `unheard`, and answers `now`.
  void adopt(const Snapshot& first, std::vector<HostEvent> unheard, const Snapshot& now) {
    script_.now = now;
    script_.events.emplace_back(first);
    for (HostEvent& event : unheard) script_.events.push_back(std::move(event));
    workers_.adopt(
        std::make_unique<ScriptedHost>(script_),
        {.generation = kGeneration, .hosts_store = true, .first_rank = 4, .num_ranks = 2});
  }

  // With a shim the loop is never out of work: nobody reads what wakes it.
  void run_until_told(std::size_t count) {
    loop_.restart();
    while (told_.size() < count) loop_.run_one();
  }

  std::vector<std::string> told_;
  std::vector<int> global_ranks_;
  std::vector<int> stalled_;
  ScriptedHost::Script script_;
  boost::asio::io_context loop_;
  NodeWorkers workers_{
      loop_,
      {.job_uuid = "u", .spec = {}, .shim = {}, .address = "10.0.0.1"},
      {.on_parked =
           [this](const WorkersParked& parked) {
             told_.push_back(
                 parked.failed_checks.empty()
                     ? "parked " + parked.store_endpoint
                     : (parked.failed_checks[0].is_of_job ? "check of the job: " : "check: ") +
                           parked.failed_checks[0].detail);
           },
       .on_exited =
           [this](const WorkerExited& exited) {
             told_.push_back("exit " + std::to_string(exited.exit.local_rank) + " " +
                             (exited.exit.cause == ExitCause::kOk     ? "ok"
                              : exited.exit.cause == ExitCause::kLost ? "lost"
                                                                      : "failed") +
                             exited.exit.tail);
             global_ranks_.push_back(exited.exit.global_rank);
           },
       .on_gone =
           [this](const WorkersGone& gone) {
             told_.emplace_back(!gone.is_proved            ? "perhaps gone"
                                : gone.num_unkillable == 0 ? "gone"
                                                           : "gone, not all");
           },
       .on_steps =
           [this](const StepsMade& steps) {
             told_.emplace_back("steps");
             stalled_ = steps.stalled_ranks;
           },
       .on_notice = [this](const std::string& line) { told_.push_back("notice " + line); },
       .on_finished = [this] { told_.emplace_back("finished"); },
       .on_adopted =
           [this](const AdoptedGeneration& adopted) {
             told_.emplace_back(adopted.is_prepared   ? "adopted prepared"
                                : adopted.lease_until ? "adopted with a lease"
                                                      : "adopted");
           },
       .on_caught_up = [this] { told_.emplace_back("caught up"); }}};
};

TEST_F(NodeWorkersTest, Fault27WhatRunsGoesOnAndCanBeStopped) {
  adopt(snapshot_of("running"), {}, snapshot_of("running"));

  EXPECT_THAT(told_, ElementsAre("adopted", "caught up"));
  workers_.stop({.job_uuid = "u", .generation = kGeneration});
  EXPECT_TRUE(std::holds_alternative<supervisor::StopGeneration>(script_.requests.back()));
}

TEST_F(NodeWorkersTest, Fault27AnExitThatNobodyHeardIsToldOnceWithItsText) {
  const WorkerExit failed = exit_of(1, ExitCause::kNonZero, ": why");
  adopt(snapshot_of("parked", {exit_of(1, ExitCause::kNonZero)}),
        {failed, GenerationEnded{.generation = kGeneration, .outcome = {.exits = {failed}}}},
        snapshot_of("parked", {exit_of(1, ExitCause::kNonZero)}));

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 1 failed: why", "gone", "caught up"));
}

TEST_F(NodeWorkersTest, Fault27AnExitThatTheAgentBeforeHeardIsToldBeforeTheEnd) {
  const WorkerExit heard = exit_of(0, ExitCause::kNonZero, ": why");
  adopt(snapshot_of("parked", {exit_of(0, ExitCause::kNonZero)}),
        {GenerationEnded{.generation = kGeneration, .outcome = {.exits = {heard}}}},
        snapshot_of("parked", {exit_of(0, ExitCause::kNonZero)}));

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 0 failed: why", "gone", "caught up"));
}

TEST_F(NodeWorkersTest, Fault27AnEndThatTheAgentBeforeHeardIsToldAgain) {
  const std::vector<WorkerExit> exits = {exit_of(0, ExitCause::kOk), exit_of(1, ExitCause::kOk)};
  adopt(snapshot_of("parked", exits), {}, snapshot_of("parked", exits));

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 0 ok", "exit 1 ok", "gone", "caught up"));
}

TEST_F(NodeWorkersTest, WhatWasPreparedSaysAgainThatItIsReady) {
  adopt(snapshot_of("prepared"), {}, snapshot_of("prepared"));

  EXPECT_THAT(told_, ElementsAre("adopted prepared", "parked 10.0.0.1:4711", "caught up"));
}

TEST_F(NodeWorkersTest, ChecksThatRunAreFollowedByWhatTheySay) {
  adopt(snapshot_of("checking"), {}, snapshot_of("checking"));

  EXPECT_THAT(told_, ElementsAre("adopted prepared", "caught up"));
}

TEST_F(NodeWorkersTest, AfterAFailedPreparationThereIsNothingToStopAndTheNodeIsNotToBlame) {
  adopt(snapshot_of("checking"), {}, snapshot_of("checking"));
  told_.clear();
  for (const auto code : {ErrorCode::kPreflightFailed, ErrorCode::kPortInUse}) {
    script_.events.emplace_back(supervisor::PrepareFailed{kGeneration, Error(code, "no disk")});
  }
  script_.wake();
  run_until_told(2);
  // Issue 19: a shim that its user replaced put the node aside with a word.
  EXPECT_THAT(told_, ElementsAre("check of the job: no disk", "check of the job: no disk"));

  const std::size_t num_requests = script_.requests.size();
  workers_.stop({.job_uuid = "u", .generation = kGeneration});
  run_until_told(3);
  EXPECT_EQ(told_.back(), "gone");
  EXPECT_EQ(script_.requests.size(), num_requests);
}

// Issue 19: the word of a shim, which its user may replace, put the node aside.
TEST_F(NodeWorkersTest, Fault67WhatAShimCannotKillTheAgentTriesItself) {
  adopt(snapshot_of("running"), {}, snapshot_of("running"));
  told_.clear();
  script_.events.emplace_back(GenerationEnded{.generation = kGeneration, .is_clean = false});
  script_.wake();
  run_until_told(3);

  EXPECT_THAT(told_, ElementsAre("notice could not end all workers", "exit 0 lost", "gone"));
  EXPECT_FALSE(workers_.has_shim());
}

// A shim whose user replaced it, or one that was late: its word about a generation that is over ended the next one.
TEST_F(NodeWorkersTest, Fault67AnEndOfAnotherGenerationEndsNothingAndOneEndIsToldOnce) {
  adopt(snapshot_of("running"), {}, snapshot_of("running"));
  told_.clear();
  script_.events.emplace_back(GenerationEnded{.generation = kGeneration - 1});
  WorkerExit older = exit_of(0, ExitCause::kNonZero);
  older.generation = kGeneration - 1;
  script_.events.emplace_back(older);
  for (int i = 0; i < 2; ++i) script_.events.emplace_back(exit_of(0, ExitCause::kOk));
  for (int i = 0; i < 2; ++i)
    script_.events.emplace_back(GenerationEnded{.generation = kGeneration});
  script_.events.emplace_back(supervisor::Notice{"done"});
  script_.wake();
  while (told_.empty() || told_.back() != "notice done") loop_.run_one();

  EXPECT_THAT(told_, ElementsAre("exit 0 ok", "gone", "notice done"));
}

TEST_F(NodeWorkersTest, Fault67WhichRanksAreHereIsNotTheShimsToSay) {
  Snapshot now = snapshot_of("running");
  now.workers.push_back({.local_rank = 1,
                         .global_rank = 4711,
                         .is_alive = true,
                         .beats = 1,
                         .silent_for = std::chrono::hours(1)});
  adopt(now, {}, now);
  WorkerExit exit = exit_of(0, ExitCause::kOk);
  exit.global_rank = -5;
  script_.events.emplace_back(exit);
  script_.events.emplace_back(now);
  script_.wake();
  run_until_told(4);

  EXPECT_THAT(told_, ElementsAre("adopted", "caught up", "exit 0 ok", "steps"));
  EXPECT_THAT(global_ranks_, ElementsAre(4));
  EXPECT_THAT(stalled_, ElementsAre(5));
}

TEST_F(NodeWorkersTest, Fault8WhatNotEvenTheAgentCanKillIsTold) {
  adopt(snapshot_of("running"), {}, snapshot_of("running"));
  told_.clear();
  script_.num_unkillable = 1;
  script_.events.emplace_back(GenerationEnded{.generation = kGeneration, .is_clean = false});
  script_.wake();
  run_until_told(3);

  EXPECT_EQ(told_.back(), "gone, not all");
}

// Issue 19: a node without cgroups, and without the right to read tags, said that all was gone.
TEST_F(NodeWorkersTest, Fault27WhatNobodyCanSeeIsNotCalledGone) {
  adopt(snapshot_of("running"), {}, snapshot_of("running"));
  told_.clear();
  script_.is_proved = false;
  script_.killed = "lost";
  script_.wake();
  run_until_told(4);
  EXPECT_EQ(told_.back(), "perhaps gone");

  workers_.stop({.job_uuid = "u", .generation = kGeneration});
  run_until_told(5);
  EXPECT_EQ(told_.back(), "perhaps gone");
  workers_.stop({.job_uuid = "u", .generation = kGeneration - 1});
  run_until_told(6);
  EXPECT_EQ(told_.back(), "gone");
}

// Issue 19: a part whose shim was lost at its end stayed for ever.
TEST_F(NodeWorkersTest, AShimThatIsLostWhileItEndsHasEnded) {
  adopt(snapshot_of("parked"), {}, snapshot_of("parked"));
  told_.clear();
  workers_.finish();
  script_.killed = "lost";
  script_.wake();
  run_until_told(2);

  EXPECT_THAT(told_, ElementsAre("notice lost", "finished"));
}

TEST_F(NodeWorkersTest, AnOrderThatNeverReachedTheShimIsOverAndTheOneBeforeItIsKilled) {
  Snapshot older = snapshot_of("running");
  older.generation = kGeneration - 1;
  adopt(older, {}, older);

  EXPECT_THAT(told_, ElementsAre("adopted", "gone", "caught up"));
  const auto& stop = std::get<supervisor::StopGeneration>(script_.requests.back());
  EXPECT_EQ(stop.generation, kGeneration - 1);
  EXPECT_EQ(stop.mode, supervisor::StopMode::kKill);
}

TEST_F(NodeWorkersTest, Fault38TheLeaseOfTheShimIsHandedOnAndRenewed) {
  Snapshot leased = snapshot_of("running");
  leased.lease_until = supervisor::boot_time() + std::chrono::seconds(5);
  adopt(leased, {}, leased);

  EXPECT_THAT(told_, ElementsAre("adopted with a lease", "caught up"));
  workers_.renew({.job_uuid = "u", .generation = kGeneration, .until = SteadyClock().now()});
  EXPECT_TRUE(std::holds_alternative<supervisor::RenewLease>(script_.requests.back()));
}

TEST_F(NodeWorkersTest, AShimThatEndedByItselfLeavesThePartWithoutOne) {
  adopt(snapshot_of("running"),
        {supervisor::JobOutcome{.exits = {exit_of(0, ExitCause::kSignaled)}}},
        snapshot_of("finished"));

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 0 failed", "gone", "caught up"));
  EXPECT_FALSE(workers_.has_shim());
}

TEST_F(NodeWorkersTest, AShimThatIsGoneWithoutAWordCountsAsLost) {
  workers_.adopt_end(
      {.generation = kGeneration, .hosts_store = false, .first_rank = 4, .num_ranks = 2}, {}, {});

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 0 lost", "gone", "caught up"));
}

TEST_F(NodeWorkersTest, Fault27WhatAShimLeftBeforeTheTakeOverIsNotCalledGoneUnseen) {
  workers_.adopt_end({.generation = kGeneration, .hosts_store = false}, {}, {.is_proved = false});

  EXPECT_EQ(told_[1], "exit 0 lost");
  EXPECT_EQ(told_[3], "perhaps gone");
}

TEST_F(NodeWorkersTest, TheLastWordOfAnOlderGenerationSaysNothingOfThisOne) {
  WorkerExit older = exit_of(0, ExitCause::kOk);
  older.generation = kGeneration - 1;
  workers_.adopt_end(
      {.generation = kGeneration, .hosts_store = false, .first_rank = 4, .num_ranks = 2},
      {older},
      {});

  EXPECT_THAT(told_, ElementsAre("adopted", "exit 0 lost", "gone", "caught up"));
}

}  // namespace
}  // namespace accel::agent::node_workers_test
