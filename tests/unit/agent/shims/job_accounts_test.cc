#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/shims/accounts_record.h"

namespace accel::agent::job_accounts_test {
namespace {

using namespace std::chrono_literals;
using supervisor::Account;
using supervisor::ExitCause;
using supervisor::GenerationStarted;
using supervisor::Hung;
using supervisor::JobAccounts;
using supervisor::Restarting;
using supervisor::Snapshot;
using supervisor::WorkerExit;

class JobAccountsTest : public ::testing::Test {
 protected:
  JobAccountsTest() { accounts_.begin(now_); }

  bool after(Duration time, const supervisor::HostEvent& event) {
    now_ += time;
    return accounts_.hear(event, now_);
  }
  static Snapshot at_step(std::uint64_t step) {
    return Snapshot{.workers = {{.pid = 5, .is_alive = true, .beats = step + 1, .step = step}}};
  }
  static Snapshot without_steps() { return Snapshot{.workers = {{.pid = 5, .is_alive = true}}}; }
  // Its worker ended `ago` before the agent hears of it.
  bool after_exit(Duration time, ExitCause cause, Duration ago = 0s, std::int64_t step = -1) {
    WorkerExit exit;
    exit.cause = cause;
    exit.step = step;
    exit.seen_at = (now_ + time - ago).time_since_epoch();
    return after(time, exit);
  }
  [[nodiscard]] Duration booked(Account account) const {
    return settled(accounts_.ledger(), now_).of(account);
  }
  [[nodiscard]] Duration all() const {
    const auto booked = settled(accounts_.ledger(), now_).booked;
    return std::accumulate(booked.begin(), booked.end(), Duration{});
  }

  const TimePoint start_{1'000s};
  TimePoint now_ = start_;
  JobAccounts accounts_;
};

TEST_F(JobAccountsTest, AJobIsSpawnedBeginsAndIsProductiveFromItsFirstStepOn) {
  EXPECT_TRUE(after(1s, GenerationStarted{.pids = {5}}));
  EXPECT_TRUE(accounts_.wants_snapshots());
  EXPECT_FALSE(after(2s, without_steps()));
  EXPECT_TRUE(after(3s, at_step(0)));
  EXPECT_FALSE(accounts_.wants_snapshots());
  EXPECT_TRUE(after_exit(4s, ExitCause::kOk));
  now_ += 5s;
  accounts_.close(now_);

  EXPECT_EQ(booked(Account::kSpawn), 1s);
  EXPECT_EQ(booked(Account::kInit), 5s);
  EXPECT_EQ(booked(Account::kProductive), 4s);
  EXPECT_EQ(booked(Account::kStop), 5s);
  EXPECT_EQ(all(), now_ - start_);
}

TEST_F(JobAccountsTest, WithoutStepsAllOfTheRunningIsProductiveInTheEnd) {
  after(1s, GenerationStarted{.pids = {5}});
  after(7s, without_steps());
  EXPECT_EQ(booked(Account::kInit), 7s);

  accounts_.close(now_);

  EXPECT_EQ(booked(Account::kProductive), 7s);
  EXPECT_EQ(booked(Account::kInit), 0s);
}

TEST_F(JobAccountsTest, StepsThatWereMadeBeforeTheRestartAreReplayed) {
  after(1s, GenerationStarted{.pids = {5}});
  after(1s, at_step(1));
  after_exit(10s, ExitCause::kSignaled, 2s, 40);
  after(1s, Restarting{.next_generation = 1, .delay = 4'000ms});
  after(5s, GenerationStarted{.generation = 1, .pids = {6}});
  after(2s, at_step(30));
  EXPECT_TRUE(accounts_.wants_snapshots());
  after(3s, at_step(40));
  after(6s, at_step(41));

  EXPECT_EQ(booked(Account::kProductive), 8s);
  EXPECT_EQ(booked(Account::kStop), 3s) << "from the end of the worker on, not from its report";
  EXPECT_EQ(booked(Account::kWaiting), 4s);
  EXPECT_EQ(booked(Account::kSpawn), 2s);
  EXPECT_EQ(booked(Account::kInit), 3s);
  EXPECT_EQ(booked(Account::kReplay), 9s);
  EXPECT_EQ(all(), now_ - start_);
}

TEST_F(JobAccountsTest, TheSilenceOfAHangIsDetection) {
  after(1s, GenerationStarted{.pids = {5, 6}});
  after(1s, at_step(3));

  after(60s, Hung{.silent_for = 31'000ms});
  after_exit(2s, ExitCause::kHang);
  now_ += 1s;

  EXPECT_EQ(booked(Account::kProductive), 29s);
  EXPECT_EQ(booked(Account::kDetect), 31s);
  EXPECT_EQ(booked(Account::kStop), 3s);
}

TEST_F(JobAccountsTest, ARankThatEndsWellWhileOthersRunStopsNothing) {
  after(1s, GenerationStarted{.pids = {5, 6}});
  Snapshot both = at_step(3);
  both.workers.push_back(both.workers[0]);
  after(1s, both);

  EXPECT_FALSE(after_exit(1s, ExitCause::kOk));
  EXPECT_TRUE(after_exit(1s, ExitCause::kOk));
  EXPECT_EQ(accounts_.ledger().open, Account::kStop);
}

TEST_F(JobAccountsTest, WhoeverAsksItToStopEndsTheProductiveTime) {
  after(1s, GenerationStarted{.pids = {5}});
  after(1s, at_step(3));

  accounts_.ask_to_stop(now_);
  after_exit(4s, ExitCause::kStoppedByUs);
  after(1s, Restarting{});
  EXPECT_EQ(booked(Account::kStop), 5s);
  EXPECT_FALSE(accounts_.wants_snapshots());
}

TEST_F(JobAccountsTest, TheNextAgentGoesOnWhereTheOneBeforeWas) {
  after(1s, GenerationStarted{.pids = {5}});
  after(1s, at_step(3));
  now_ += 2s;
  const auto record = to_record(accounts_);

  now_ += 8s;
  accounts_ = accounts_of(record, true, now_);
  EXPECT_EQ(booked(Account::kProductive), 10s);
  EXPECT_EQ(all(), now_ - start_);
  after_exit(1s, ExitCause::kNonZero);
  after(0s, Restarting{});
  after(0s, GenerationStarted{.generation = 1, .pids = {7}});
  after(0s, at_step(2));
  EXPECT_EQ(accounts_.ledger().open, Account::kReplay);
}

TEST_F(JobAccountsTest, AfterAnotherBootTheClockOfThenCountsForNothing) {
  after(1s, GenerationStarted{.pids = {5}});
  const auto record = to_record(accounts_);

  accounts_ = accounts_of(record, false, TimePoint(3s));
  accounts_.close(TimePoint(3s));

  EXPECT_EQ(accounts_.ledger().of(Account::kSpawn), 1s);
  EXPECT_EQ(accounts_.ledger().of(Account::kProductive), 0s);
}

TEST_F(JobAccountsTest, ARecordOfABuildThatKnewNoAccountsHasNone) {
  accounts_ = accounts_of({}, true, now_);
  accounts_.close(now_);

  EXPECT_EQ(accounts_.ledger().of(Account::kWaiting), Duration{});
}

}  // namespace
}  // namespace accel::agent::job_accounts_test
