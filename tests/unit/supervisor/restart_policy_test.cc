#include "runtime/supervisor/stop/restart_policy.h"

#include <gtest/gtest.h>

namespace accel::supervisor::restart_policy_test {
namespace {

using namespace std::chrono_literals;

constexpr double kNoJitter = 1.0;  // the whole delay

const RestartPolicy kPolicy = {
    .max_restarts = 10, .backoff_initial = 1s, .backoff_max = 60s, .stable_after = 60s};

TEST(RestartPolicy, FirstRestartIsImmediate) {
  const auto decision = decide_restart(kPolicy, {}, {.lived = 1s}, kNoJitter);

  EXPECT_EQ(decision.verdict, RestartVerdict::kRestart);
  EXPECT_EQ(decision.delay, 0ms);
  EXPECT_EQ(decision.history.restarts, 1);
}

TEST(RestartPolicy, DelayDoublesFromTheSecondQuickFailure) {
  RestartHistory history;
  std::vector<Milliseconds> delays;
  for (int i = 0; i < 8; ++i) {
    const auto decision = decide_restart(kPolicy, history, {.lived = 1s}, kNoJitter);
    delays.push_back(decision.delay);
    history = decision.history;
  }

  EXPECT_EQ(delays, (std::vector<Milliseconds>{0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s}));
}

TEST(RestartPolicy, JitterHalvesTheDelayAtMost) {
  const auto decision =
      decide_restart(kPolicy, {.restarts = 1, .quick_failures = 1}, {.lived = 1s}, 0.0);

  EXPECT_EQ(decision.delay, 500ms);
}

TEST(RestartPolicy, JitterIsTheRandomShareOfTheDelay) {
  RestartPolicy policy = kPolicy;
  const RestartHistory history = {.restarts = 1, .quick_failures = 1};
  for (const auto& [jitter, least] :
       {std::pair{0.0, 1000ms}, std::pair{0.25, 750ms}, std::pair{1.0, 0ms}}) {
    policy.jitter = jitter;
    EXPECT_EQ(decide_restart(policy, history, {.lived = 1s}, 0.0).delay, least) << jitter;
    EXPECT_EQ(decide_restart(policy, history, {.lived = 1s}, 1.0).delay, 1000ms) << jitter;
  }
}

TEST(RestartPolicy, TheSameCrashSoOftenInARowIsTheEnd) {
  RestartPolicy policy = kPolicy;
  policy.max_same_crash = 3;
  RestartHistory history;
  const auto crash = [&](const char* key) {
    const auto decision = decide_restart(policy, history, {.lived = 1s, .crash = key}, kNoJitter);
    history = decision.history;
    return decision.verdict;
  };

  for (const char* key : {"a", "a", "b", "a", "a"}) {
    EXPECT_EQ(crash(key), RestartVerdict::kRestart);
  }
  EXPECT_EQ(crash("a"), RestartVerdict::kSameCrash);
}

TEST(RestartPolicy, CrashesThatAreNotComparedNeverAreTheSame) {
  RestartPolicy policy = kPolicy;
  policy.max_same_crash = 2;
  RestartHistory history;
  for (int i = 0; i < 5; ++i) {
    const auto decision = decide_restart(policy, history, {.lived = 1s}, kNoJitter);
    EXPECT_EQ(decision.verdict, RestartVerdict::kRestart);
    history = decision.history;
  }
}

TEST(RestartPolicy, CrashesDifferByCauseCodeRankAndStep) {
  const WorkerExit exit = {
      .global_rank = 1, .cause = ExitCause::kNonZero, .exit_code = 3, .step = 7};
  EXPECT_EQ(crash_key(exit), crash_key(exit));
  for (const auto& change : std::initializer_list<void (*)(WorkerExit&)>{
           [](WorkerExit& other) { other.global_rank = 2; },
           [](WorkerExit& other) { other.cause = ExitCause::kHang; },
           [](WorkerExit& other) { other.exit_code = 4; },
           [](WorkerExit& other) { other.signal = 3; },
           [](WorkerExit& other) { other.step = 8; }}) {
    WorkerExit other = exit;
    change(other);
    EXPECT_NE(crash_key(other), crash_key(exit));
  }
}

TEST(RestartPolicy, RulesOfACauseGoBeforeEverythingElse) {
  RestartPolicy policy = kPolicy;
  policy.fail_after = {ExitCause::kHang};
  policy.restart_after = {ExitCause::kExecFailed};

  EXPECT_EQ(decide_restart(policy, {}, {.cause = ExitCause::kHang}, kNoJitter).verdict,
            RestartVerdict::kNotWanted);
  EXPECT_EQ(decide_restart(policy, {}, {.cause = ExitCause::kExecFailed}, kNoJitter).verdict,
            RestartVerdict::kRestart);
  EXPECT_EQ(decide_restart(policy, {}, {.cause = ExitCause::kLibraryMissing}, kNoJitter).verdict,
            RestartVerdict::kWouldFailAgain);
  EXPECT_EQ(decide_restart(policy, {}, {.cause = ExitCause::kNonZero}, kNoJitter).verdict,
            RestartVerdict::kRestart);
}

TEST(RestartPolicy, GenerationThatLivedLongRestartsAtOnce) {
  const auto decision =
      decide_restart(kPolicy, {.restarts = 3, .quick_failures = 3}, {.lived = 60s}, kNoJitter);

  EXPECT_EQ(decision.delay, 0ms);
  EXPECT_EQ(decision.history.quick_failures, 1);
}

TEST(RestartPolicy, GenerationThatMadeProgressRestartsAtOnce) {
  const auto decision = decide_restart(kPolicy,
                                       {.restarts = 3, .quick_failures = 3},
                                       {.lived = 1s, .made_progress = true},
                                       kNoJitter);

  EXPECT_EQ(decision.delay, 0ms);
}

TEST(RestartPolicy, Fault4RunningOutOfMemoryHasABudgetOfItsOwn) {
  const GenerationFacts out_of_memory = {.cause = ExitCause::kOutOfMemory, .lived = 1h};

  const auto first = decide_restart(kPolicy, {.restarts = 10}, out_of_memory, kNoJitter);
  EXPECT_EQ(first.verdict, RestartVerdict::kRestart);
  EXPECT_EQ(first.history.restarts, 10);
  EXPECT_EQ(first.history.total(), 11);
  const auto second = decide_restart(kPolicy, first.history, out_of_memory, kNoJitter);
  EXPECT_EQ(second.verdict, RestartVerdict::kMemoryBudgetSpent);
  const auto other =
      decide_restart(kPolicy, {.restarts = 9, .out_of_memory = 1}, {.lived = 1h}, kNoJitter);
  EXPECT_EQ(other.verdict, RestartVerdict::kRestart);
}

TEST(RestartPolicy, AJobThatIsNeverRestartedIsNotRestartedAfterRunningOutOfMemory) {
  RestartPolicy never = kPolicy;
  never.max_restarts = 0;

  const auto decision = decide_restart(never, {}, {.cause = ExitCause::kOutOfMemory}, kNoJitter);

  EXPECT_EQ(decision.verdict, RestartVerdict::kBudgetSpent);
}

TEST(RestartPolicy, BudgetEndsIt) {
  const auto decision = decide_restart(kPolicy, {.restarts = 10}, {.lived = 1h}, kNoJitter);

  EXPECT_EQ(decision.verdict, RestartVerdict::kBudgetSpent);
}

TEST(RestartPolicy, WhatCannotBeStartedIsNotTriedAgain) {
  for (const ExitCause cause : {ExitCause::kExecFailed, ExitCause::kLibraryMissing}) {
    const auto decision = decide_restart(kPolicy, {}, {.cause = cause, .lived = 1h}, kNoJitter);

    EXPECT_EQ(decision.verdict, RestartVerdict::kWouldFailAgain);
  }
}

TEST(RestartPolicy, ThousandQuickFailuresStayAtTheLongestDelay) {
  const RestartPolicy policy = {.max_restarts = 2000};
  const auto decision =
      decide_restart(policy, {.restarts = 1000, .quick_failures = 1000}, {.lived = 1s}, kNoJitter);

  EXPECT_EQ(decision.delay, policy.backoff_max);
}

}  // namespace
}  // namespace accel::supervisor::restart_policy_test
