#include "runtime/supervisor/restart_policy.h"

#include <gtest/gtest.h>

namespace accel::supervisor {
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
  const auto decision = decide_restart(kPolicy, {1, 1}, {.lived = 1s}, 0.0);

  EXPECT_EQ(decision.delay, 500ms);
}

TEST(RestartPolicy, GenerationThatLivedLongRestartsAtOnce) {
  const auto decision = decide_restart(kPolicy, {3, 3}, {.lived = 60s}, kNoJitter);

  EXPECT_EQ(decision.delay, 0ms);
  EXPECT_EQ(decision.history.quick_failures, 1);
}

TEST(RestartPolicy, GenerationThatMadeProgressRestartsAtOnce) {
  const auto decision =
      decide_restart(kPolicy, {3, 3}, {.lived = 1s, .made_progress = true}, kNoJitter);

  EXPECT_EQ(decision.delay, 0ms);
}

TEST(RestartPolicy, BudgetEndsIt) {
  const auto decision = decide_restart(kPolicy, {10, 0}, {.lived = 1h}, kNoJitter);

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
  const auto decision = decide_restart(policy, {1000, 1000}, {.lived = 1s}, kNoJitter);

  EXPECT_EQ(decision.delay, policy.backoff_max);
}

}  // namespace
}  // namespace accel::supervisor
