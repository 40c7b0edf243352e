#include "runtime/supervisor/shim/job_record.h"

#include <csignal>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::job_record_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

WorkerExit end_of(int rank, ExitCause cause, int code = 0) {
  return {.global_rank = rank, .local_rank = rank, .cause = cause, .exit_code = code};
}

TEST(JobRecord, FirstFailureIsTheFirstByTime) {
  JobRecord record;
  record.add(end_of(0, ExitCause::kOk), {}, false);
  record.add(end_of(2, ExitCause::kNonZero, 5), {}, false);
  record.add(end_of(1, ExitCause::kNonZero, 6), {}, false);

  EXPECT_EQ(record.first_failure()->global_rank, 2);
  EXPECT_EQ(record.outcome({}, 0).exit_code, 5);
}

TEST(JobRecord, OurOwnDoingIsNoFailure) {
  JobRecord record;
  record.add(end_of(0, ExitCause::kStoppedByUs, 1), {}, false);

  EXPECT_FALSE(record.first_failure().has_value());
}

TEST(JobRecord, NothingFailsAfterSomebodyAskedToStop) {
  JobRecord record;
  record.add(end_of(0, ExitCause::kNonZero, 1), {}, true);

  EXPECT_FALSE(record.first_failure().has_value());
  const auto outcome = record.outcome(Stop{.signal = SIGTERM}, 0);
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_EQ(outcome.reason, "stopped by SIGTERM");
}

TEST(JobRecord, PreemptionBySigusr1EndsLikeOneBySigterm) {
  EXPECT_EQ(JobRecord().outcome(Stop{.signal = SIGUSR1}, 0).exit_code, 143);
}

TEST(JobRecord, PreemptedJobWhoseRanksAllSavedEndsWithTheRequeueCode) {
  JobRecord record;
  for (int rank = 0; rank < 2; ++rank) {
    WorkerExit exit = end_of(rank, ExitCause::kNonZero, 85);
    exit.has_saved = true;
    record.add(exit, {}, true);
  }

  const auto outcome = record.outcome(Stop{.signal = SIGTERM}, 0, 85);

  EXPECT_EQ(outcome.exit_code, 85);
  EXPECT_TRUE(outcome.has_saved);
  EXPECT_EQ(outcome.reason, "stopped by SIGTERM; every rank has saved");
}

TEST(JobRecord, OneRankThatHasNotSavedKeepsTheJobFromTheQueue) {
  JobRecord record;
  WorkerExit exit = end_of(0, ExitCause::kNonZero, 85);
  exit.has_saved = true;
  record.add(exit, {}, true);
  record.add(end_of(1, ExitCause::kNonZero, 85), {}, true);

  const auto outcome = record.outcome(Stop{.signal = SIGTERM}, 0, 85);

  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_FALSE(outcome.has_saved);
}

TEST(JobRecord, SavedRanksChangeNothingAfterCtrlC) {
  JobRecord record;
  WorkerExit exit = end_of(0, ExitCause::kNonZero, 1);
  exit.has_saved = true;
  record.add(exit, {}, true);

  EXPECT_EQ(record.outcome(Stop{.mode = StopMode::kInterrupt, .signal = SIGINT}, 0, 85).exit_code,
            130);
}

TEST(JobRecord, Fault6AHungRankIsTheFirstFailureWhoeverEndsBefore) {
  JobRecord record;
  record.note_hang(1, "no progress for 31 s after step 20, limit 30 s");
  record.add(end_of(0, ExitCause::kNonZero, 1), {}, false);
  EXPECT_FALSE(record.first_failure().has_value());
  record.add(end_of(1, ExitCause::kStoppedByUs), {}, false);

  ASSERT_TRUE(record.first_failure().has_value());
  EXPECT_EQ(record.first_failure()->cause, ExitCause::kHang);
  EXPECT_EQ(record.first_failure()->detail, "no progress for 31 s after step 20, limit 30 s");
  EXPECT_EQ(record.outcome({}, 0).exit_code, 124);
}

TEST(JobRecord, LoadersComplaintInTheTailIsTheCause) {
  JobRecord record;
  record.add(end_of(0, ExitCause::kNonZero, 127), {}, false);

  record.complete(0, [](WorkerExit& exit) {
    exit.tail = "a: error while loading shared libraries: libz.so: cannot open shared object file";
  });

  EXPECT_EQ(record.first_failure()->cause, ExitCause::kLibraryMissing);
}

TEST(JobRecord, EarlyReturnsAreNotedBesideTheFailure) {
  JobRecord record;
  record.add(end_of(0, ExitCause::kOk), {}, false);
  record.add(end_of(1, ExitCause::kNonZero, 1), {}, false);

  record.note_early_returns();

  EXPECT_THAT(record.outcome({}, 0).notices,
              ElementsAre("rank 0 had ended with exit code 0 before rank 1 failed"));
}

TEST(JobRecord, NewGenerationForgetsTheExitsAndKeepsTheNotices) {
  JobRecord record;
  record.add_notice("a log dropped");
  record.add(end_of(1, ExitCause::kNonZero, 1), {}, false);

  record.begin_generation(1);

  EXPECT_THAT(record.exits(), IsEmpty());
  EXPECT_TRUE(record.outcome({}, 1).success);
  EXPECT_THAT(record.outcome({}, 1).notices, ElementsAre("a log dropped"));
}

}  // namespace
}  // namespace accel::supervisor::job_record_test
