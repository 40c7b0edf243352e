#include "launcher/run/progress_line.h"

#include <chrono>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::progress_line_test {
namespace {

using namespace std::chrono_literals;
using supervisor::Snapshot;
using supervisor::WorkerSnapshot;

constexpr TimePoint kStart{};
constexpr std::size_t kWide = 200;

Snapshot at_steps(std::vector<std::uint64_t> steps, std::uint64_t samples = 0) {
  Snapshot snapshot;
  for (const std::uint64_t step : steps) {
    const int rank = static_cast<int>(snapshot.workers.size());
    snapshot.workers.push_back({.local_rank = rank,
                                .global_rank = rank,
                                .pid = 1,
                                .is_alive = true,
                                .beats = step,
                                .step = step,
                                .samples = samples,
                                .times = {}});
  }
  return snapshot;
}

TEST(ProgressLine, SaysStepRateAndTime) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  line.take(at_steps({100, 101}, 50), kStart + 1s);
  line.take(at_steps({150, 150}, 100), kStart + 6s);

  EXPECT_EQ(line.text(kStart + 3723s, kWide), "step 150 | 10.0 steps/s | 20.0 samples/s | 1:02:03");
}

TEST(ProgressLine, RatesAreThoseOfTheLastTenSeconds) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  line.take(at_steps({1'000}), kStart);
  for (int second = 1; second <= 30; ++second)
    line.take(at_steps({1'000 + static_cast<std::uint64_t>(second) * 2}), kStart + second * 1s);
  for (int second = 31; second <= 41; ++second)
    line.take(at_steps({1'060 + static_cast<std::uint64_t>(second - 30) * 4}),
              kStart + second * 1s);

  EXPECT_EQ(line.text(kStart + 41s, kWide), "step 1104 | 4.00 steps/s | 0:00:41");
}

TEST(ProgressLine, NamesARankThatIsSeveralStepsBehind) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  line.take(at_steps({12, 11, 12}), kStart);
  EXPECT_EQ(line.text(kStart, kWide), "step 11 | 0:00:00");

  line.take(at_steps({14, 12, 15}), kStart + 1s);

  EXPECT_EQ(line.text(kStart + 1s, kWide),
            "step 12 | 1.00 steps/s | slowest rank 1 (3 steps behind) | 0:00:01");
}

TEST(ProgressLine, ARestartBeginsTheRateAnew) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  line.take(at_steps({100}), kStart);
  line.take(at_steps({200}), kStart + 1s);
  line.restarting();
  EXPECT_EQ(line.text(kStart + 2s, kWide), "");  // nothing was reported since

  line.take(at_steps({90}), kStart + 3s);
  line.take(at_steps({91}), kStart + 5s);

  EXPECT_EQ(line.text(kStart + 5s, kWide), "step 91 | 0.50 steps/s | 1 restart | 0:00:05");
}

TEST(ProgressLine, CountsRanksThatReportAndRunAlone) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  Snapshot snapshot = at_steps({50, 0, 7});
  snapshot.workers[2].is_alive = false;

  line.take(snapshot, kStart);

  EXPECT_EQ(line.text(kStart, kWide), "step 50 | 0:00:00");
}

TEST(ProgressLine, WaitsForAReportedStepUnlessItIsOn) {
  ProgressLine automatic(ProgressWhen::kAuto, kStart);
  ProgressLine on(ProgressWhen::kOn, kStart);
  ProgressLine off(ProgressWhen::kOff, kStart);
  for (ProgressLine* line : {&automatic, &on, &off}) line->take(at_steps({0, 0}), kStart);

  EXPECT_EQ(automatic.text(kStart, kWide), "");
  EXPECT_EQ(on.text(kStart, kWide), "step - | 0:00:00");
  off.take(at_steps({5}), kStart);
  EXPECT_EQ(off.text(kStart, kWide), "");
}

TEST(ProgressLine, LeavesTheLastColumnFree) {
  ProgressLine line(ProgressWhen::kAuto, kStart);
  line.take(at_steps({5}), kStart);

  EXPECT_EQ(line.text(kStart, 17), "step 5 | 0:00:00");
  EXPECT_EQ(line.text(kStart, 10), "step 5 |~");
  EXPECT_EQ(line.text(kStart, 0), "");
}

}  // namespace
}  // namespace accel::launcher::progress_line_test
