#include "runtime/supervisor/stop/orphan_sweep.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/fake_system.h"
#include "tests/support/manual_clock.h"

namespace accel::supervisor::orphan_sweep_test {
namespace {

using namespace std::chrono_literals;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Pair;
using ::testing::SizeIs;
using Verdict = OrphanSweep::Verdict;

const std::string kTag = std::string("PATH=/bin\0ACCEL_JOB_ID=job-1\0", 29);

class OrphanSweepTest : public ::testing::Test {
 protected:
  static constexpr pid_t kShim = 1'000'000;
  const SweepScope scope_ = {.ancestor = kShim, .job_id = "job-1", .started_at = 100};

  OrphanSweepTest() { system_.add_process(kShim, 1, 100); }

  // Steps until the sweep is done; at most twenty times.
  Verdict run(OrphanSweep& sweep) {
    OrphanSweep::Step step{Verdict::kScanAgain, {}};
    for (int i = 0; i < 20 && step.verdict == Verdict::kScanAgain; ++i) {
      step = sweep.step(clock_.now());
      clock_.advance(step.wait);
    }
    return step.verdict;
  }

  test::FakeSystem system_;
  test::ManualClock clock_;
};

TEST(ProcessStat, TellsAProcessThatIsAboutToEnd) {
  const std::string rest = " 0 0 0 0 0 0 0 20 0 1 0 120 0 0";
  const auto living = parse_stat("7 (a (b) c) R 1 7 7 0 -1 4194304 0" + rest);
  const auto ending = parse_stat("7 (a (b) c) R 1 7 7 0 -1 4194308 0" + rest);

  ASSERT_TRUE(living && ending);
  EXPECT_FALSE(living->is_exiting);
  EXPECT_TRUE(ending->is_exiting);
  EXPECT_EQ(ending->start_time, 120U);
}

TEST_F(OrphanSweepTest, FindsWhatIsInTheJobsCgroupsThoughItShedEverythingElse) {
  system_.add_process(7, 1, 200);
  system_.add_process(8, 1, 200);
  system_.files["/cg/rank-0/cgroup.procs"] = "7\n";
  SweepScope scope = scope_;
  scope.cgroups = {"/cg/rank-0", "/cg/rank-1"};
  OrphanSweep sweep(system_, scope, 2s);

  EXPECT_EQ(run(sweep), Verdict::kClean);

  EXPECT_THAT(system_.signals, ElementsAre(Pair(7, SIGKILL)));
}

TEST_F(OrphanSweepTest, KillsDescendantsAndThoseWithTheTag) {
  system_.add_process(1'000'001, kShim, 120);
  system_.add_process(1'000'002, 1'000'001, 130);
  system_.add_process(1'000'003, 1, 140, kTag);
  OrphanSweep sweep(system_, scope_, 2s);

  EXPECT_EQ(run(sweep), Verdict::kClean);
  EXPECT_THAT(sweep.found(), SizeIs(3));
  EXPECT_EQ(sweep.found()[0].command, "work er");
}

TEST_F(OrphanSweepTest, LeavesOthersAlone) {
  system_.add_process(1'000'001, 1, 120, std::string("ACCEL_JOB_ID=job-11\0", 20));
  system_.add_process(1'000'002, 1, 120);
  OrphanSweep sweep(system_, scope_, 2s);

  EXPECT_EQ(run(sweep), Verdict::kClean);
  EXPECT_THAT(system_.signals, IsEmpty());
}

TEST_F(OrphanSweepTest, LeavesAJobOfTheSameNameAlone) {
  SweepScope scope = scope_;
  scope.instance = "one";
  const std::string tag = kTag + "ACCEL_JOB_INSTANCE=";
  system_.add_process(1'000'001, 1, 120, tag + "one" + '\0');
  system_.add_process(1'000'002, 1, 120, tag + "other" + '\0');
  system_.add_process(1'000'003, 1, 120, kTag);
  OrphanSweep sweep(system_, scope, 2s);

  EXPECT_EQ(run(sweep), Verdict::kClean);
  EXPECT_THAT(system_.signals, ElementsAre(Pair(1'000'001, SIGKILL)));
}

TEST_F(OrphanSweepTest, NeverTouchesAProcessThatIsOlderThanTheJob) {
  system_.add_process(1'000'001, kShim, 99, kTag);
  OrphanSweep sweep(system_, scope_, 2s);

  EXPECT_EQ(run(sweep), Verdict::kClean);
  EXPECT_THAT(system_.signals, IsEmpty());
}

TEST_F(OrphanSweepTest, NeedsTwoEmptyScans) {
  OrphanSweep sweep(system_, scope_, 2s);

  EXPECT_EQ(sweep.step(clock_.now()).verdict, Verdict::kScanAgain);
  EXPECT_EQ(sweep.step(clock_.now()).verdict, Verdict::kClean);
}

TEST_F(OrphanSweepTest, DoesNotSignalAnotherProcessWithTheSameNumber) {
  system_.add_process(1'000'001, kShim, 120);
  const auto seen = find_strays(system_, scope_, read_process_table(system_));
  system_.remove_process(1'000'001);
  system_.add_process(1'000'001, 1, 500);

  ASSERT_THAT(seen, SizeIs(1));
  EXPECT_FALSE(signal_stray(system_, seen[0], SIGKILL));
  EXPECT_THAT(system_.signals, Not(Contains(Pair(1'000'001, SIGKILL))));
}

TEST_F(OrphanSweepTest, WaitsForNoProcessThatItselfWaitsUninterruptibly) {
  system_.add_process(1'000'001, 1, 120, kTag, 'D');  // to read its environment may take for ever
  OrphanSweep sweep(system_, scope_, 2s);
  const TimePoint begin = clock_.now();

  EXPECT_EQ(run(sweep), Verdict::kClean);

  EXPECT_THAT(system_.paths_read, Not(Contains("/proc/1000001/environ")));
  EXPECT_THAT(system_.paths_read, Not(Contains("/proc/1000001/cmdline")));
  EXPECT_THAT(sweep.describe_unread(), ElementsAre("process 1000001 ([a (b) c], state D)"));
  EXPECT_GE(clock_.now() - begin, 200ms);  // it was given the time of an ordinary read
}

TEST_F(OrphanSweepTest, FindsTheTagOfAProcessThatWaitedForADisk) {
  system_.add_process(1'000'001, 1, 120, kTag, 'D');
  OrphanSweep sweep(system_, scope_, 2s);
  EXPECT_EQ(sweep.step(clock_.now()).verdict, Verdict::kScanAgain);
  system_.add_process(1'000'001, 1, 120, kTag);

  EXPECT_EQ(run(sweep), Verdict::kClean);

  EXPECT_THAT(system_.signals, ElementsAre(Pair(1'000'001, SIGKILL)));
  EXPECT_THAT(sweep.describe_unread(), IsEmpty());
}

TEST_F(OrphanSweepTest, LosesNoTimeWithAThreadOfTheKernel) {
  system_.add_process(1'000'001, 2, 120, "", 'D');
  OrphanSweep sweep(system_, scope_, 2s);
  const TimePoint begin = clock_.now();

  EXPECT_EQ(run(sweep), Verdict::kClean);

  EXPECT_EQ(clock_.now(), begin);
}

TEST_F(OrphanSweepTest, Fault8GivesUpOnAProcessThatCannotBeKilled) {
  system_.add_process(1'000'001, kShim, 120);
  system_.unkillable.insert(1'000'001);
  OrphanSweep sweep(system_, scope_, 2s);

  EXPECT_EQ(sweep.step(clock_.now()).verdict, Verdict::kScanAgain);
  clock_.advance(2s);
  EXPECT_EQ(sweep.step(clock_.now()).verdict, Verdict::kGaveUp);
  EXPECT_THAT(sweep.describe_last_scan(),
              ElementsAre(HasSubstr("process 1000001 (work er, state S")));
}

}  // namespace
}  // namespace accel::supervisor::orphan_sweep_test
