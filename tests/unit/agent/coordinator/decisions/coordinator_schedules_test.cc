// Random schedules: messages overtake, are lost and repeated; agents, nodes and the coordinator die and
// come back; links are cut; ranks fail; somebody asks for a stop. What must hold is checked at each step
// (virtual_cluster.h), also behind the end of the job; in the end, with every fault mended, the job must
// come to an end by itself.
//
// A seed that fails is printed: CoordinatorSchedules.OneSeed runs it alone with
// ACCEL_SCHEDULE_SEED=<seed>.

#include <chrono>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/test_budget.h"
#include "tests/support/virtual_cluster.h"

namespace accel::agent::coordinator_schedules_test {
namespace {

using test::ClusterOptions;
using test::Move;
using test::MoveKind;
using test::SeededBug;
using test::VirtualCluster;
using ::testing::HasSubstr;

class Schedule {
 public:
  Schedule(std::uint64_t seed, SeededBug bug) : random_(seed), cluster_(options(bug)) {}

  // What went wrong; empty: nothing.
  std::string run() {
    const int length = static_cast<int>(below(400)) + 50;
    for (int i = 0; i < length && cluster_.violation().empty(); ++i) {
      cluster_.chance = static_cast<double>(below(1000)) / 1000;
      if (!one_in(fault_odds_) || !try_fault()) step();
    }
    if (!cluster_.violation().empty()) return cluster_.violation();
    cluster_.mend();
    constexpr int kMost = 20'000;
    cluster_.run_fairly(kMost);
    if (!cluster_.violation().empty()) return cluster_.violation();
    return cluster_.has_ended() ? "" : "the job never ends";
  }

 private:
  ClusterOptions options(SeededBug bug) {
    ClusterOptions options;
    options.num_nodes = 3 + static_cast<int>(below(3));
    const int min_nodes = 1 + static_cast<int>(below(3));
    options.job = test::small_job(min_nodes, options.num_nodes - static_cast<int>(below(2)));
    options.job.max_nodes = std::max(options.job.max_nodes, min_nodes);
    options.job.restart.budget.max_restarts = static_cast<int>(below(4));
    options.job.fence.fencing = below(3) == 0 ? Fencing::kSoft : Fencing::kHard;
    options.job.fence.lease = Milliseconds(4'000 + below(8'000));
    options.job.scale_up = ScaleUp::kParked;
    options.job.restart.regroup_timeout = std::chrono::seconds(120);
    options.job.prepare_limit = std::chrono::seconds(30);
    options.work = Milliseconds(500 + below(20'000));
    options.config.quarantine_first = std::chrono::seconds(30);
    options.config.quarantine_most = std::chrono::seconds(60);
    options.bug = bug;
    fault_odds_ = 5 + static_cast<unsigned>(below(40));
    options.job.recruits = one_in(2);
    may_stop_ = one_in(3);
    return options;
  }

  std::uint64_t below(std::uint64_t n) { return random_() % n; }
  bool one_in(unsigned n) { return below(n) == 0; }

  void step() {
    const auto moves = cluster_.moves(3);
    // Mending is rarer than ordinary work, so that faults last.
    std::vector<Move> likely;
    for (const Move& move : moves) {
      if (move.kind <= MoveKind::kConnect || one_in(20)) likely.push_back(move);
    }
    if (likely.empty() || one_in(12)) return cluster_.apply({MoveKind::kAdvance});
    cluster_.apply(likely[below(likely.size())]);
  }

  bool try_fault() {
    const int index = static_cast<int>(below(cluster_.num_nodes()));
    auto& node = cluster_.node(index);
    switch (below(12)) {
      case 0:
        return apply_if(!node.up.empty(), MoveKind::kDropUp, index, pick(node.up.size()));
      case 1:
        return apply_if(!node.down.empty(), MoveKind::kDropDown, index, pick(node.down.size()));
      case 2:
        return apply_if(!node.up.empty(), MoveKind::kRepeatUp, index, pick(node.up.size()));
      case 3:
        return apply_if(!node.down.empty(), MoveKind::kRepeatDown, index, pick(node.down.size()));
      case 4:
        return apply_if(node.is_agent_up && node.connection != 0, MoveKind::kCrashAgent, index);
      case 5:
        return apply_if(node.is_agent_up && node.connection != 0, MoveKind::kCrashNode, index);
      case 6:
        return apply_if(cluster_.is_coordinator_up(), MoveKind::kCrashCoordinator, index);
      case 7:
      case 8:
        return apply_if(!node.is_cut, MoveKind::kCut, index);
      case 9:
        return apply_if(node.is_agent_up && node.workers.phase == test::Workers::Phase::kRunning,
                        MoveKind::kFailRank,
                        index);
      case 10:
        if (may_stop_ && one_in(4)) cluster_.stop_job(one_in(2));
        return may_stop_;
      default:
        return apply_if(node.is_agent_up && !node.is_paused, MoveKind::kPauseAgent, index);
    }
  }

  bool apply_if(bool possible, MoveKind kind, int node, int index = 0) {
    if (possible) cluster_.apply({kind, node, index});
    return possible;
  }

  int pick(std::size_t size) {
    return static_cast<int>(below(std::max<std::size_t>(1, std::min<std::size_t>(3, size))));
  }

  std::mt19937_64 random_;
  unsigned fault_odds_ = 10;
  bool may_stop_ = false;
  VirtualCluster cluster_;
};

std::string run_schedule(std::uint64_t seed, SeededBug bug = SeededBug::kNone) {
  return Schedule(seed, bug).run();
}

TEST(CoordinatorSchedules, HoldUnderRandomFaults) {
  const auto most = accel::test::is_long_run() ? 100'000u : 20'000u;
  const auto end = std::chrono::steady_clock::now() + accel::test::test_budget(0.25);
  const std::uint64_t first = accel::test::test_seed() * 1'000'000;
  std::uint64_t done = 0;
  for (; done < most; ++done) {
    const bool is_over = std::chrono::steady_clock::now() > end;
    if (is_over && !accel::test::is_long_run()) break;
    const std::string fault = run_schedule(first + done);
    ASSERT_EQ(fault, "") << "seed " << first + done;
  }
  std::printf("%llu schedules from seed %llu\n",
              static_cast<unsigned long long>(done),
              static_cast<unsigned long long>(first));
  RecordProperty("schedules", std::to_string(done));
  EXPECT_GT(done, 0u);
}

TEST(CoordinatorSchedules, OneSeed) {
  const auto seed = accel::test::number_from_environment("ACCEL_SCHEDULE_SEED", 0);
  if (seed == 0) GTEST_SKIP() << "for a seed that failed: set ACCEL_SCHEDULE_SEED";
  EXPECT_EQ(run_schedule(seed), "");
}

// The first fault that the schedules find.
std::string find_fault(SeededBug bug) {
  std::string fault;
  for (std::uint64_t seed = 1; seed < 20'000 && fault.empty(); ++seed) {
    fault = run_schedule(seed, bug);
  }
  std::printf("found: %s\n", fault.c_str());
  return fault;
}

TEST(CoordinatorSchedules, AnEndThatIsToldBeforeItIsWrittenIsFoundByWhatWasTold) {
  EXPECT_THAT(find_fault(SeededBug::kTellsEndsBeforeWriting),
              HasSubstr("of which somebody was told that it is over"));
}

class SchedulesBite : public ::testing::TestWithParam<SeededBug> {};

// A check that cannot fail proves nothing: each seeded bug must be found.
TEST_P(SchedulesBite, FindTheSeededBug) {
  EXPECT_NE(find_fault(GetParam()), "");
}

INSTANTIATE_TEST_SUITE_P(EveryBug,
                         SchedulesBite,
                         ::testing::Values(SeededBug::kAnswersBeforeWriting,
                                           SeededBug::kForgetsLease,
                                           SeededBug::kForgetsBudget,
                                           SeededBug::kKeepsVoidSession));

}  // namespace
}  // namespace accel::agent::coordinator_schedules_test
