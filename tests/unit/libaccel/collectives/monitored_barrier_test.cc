// Monitored barriers through c10d's interface, in one node and over two. Who is named within a node, and of deaths:
// tests/unit/collectives/shm_roll_call_test.cc.

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/backend_ranks.h"

namespace accel::monitored_barrier_test {
namespace {

using test::run_backends;
using ::testing::HasSubstr;

class MonitoredBarrier : public ::testing::TestWithParam<NodeLayout> {
 protected:
  static int size() {
    return GetParam().num_nodes() * static_cast<int>(GetParam().nodes[0].size());
  }
};

c10d::BarrierOptions within(std::chrono::milliseconds timeout) {
  c10d::BarrierOptions options;
  options.timeout = timeout;
  return options;
}

TEST_P(MonitoredBarrier, NobodyLeavesItBeforeAllHaveCome) {
  std::atomic<int> num_come = 0;
  run_backends(GetParam(), [&](ShmBackend& backend) {
    for (int round = 1; round <= 10; ++round) {
      ++num_come;
      backend.monitoredBarrier(within(std::chrono::minutes(1)), round % 2 == 0);
      EXPECT_GE(num_come.load(), round * size());
      backend.barrier({});
    }
  });
}

TEST_P(MonitoredBarrier, WhoHasNotComeIsNamedByAllOthers) {
  std::atomic<int> num_told = 0;
  const int late = size() - 1;
  run_backends(GetParam(), [&](ShmBackend& backend) {
    while (backend.getRank() == late && num_told.load() < late) std::this_thread::yield();
    if (backend.getRank() == late) return;
    std::string message = "no error";
    try {
      backend.monitoredBarrier(within(std::chrono::milliseconds(100)), true);
    } catch (const Error& error) {
      message = error.what();
    }
    ++num_told;
    EXPECT_THAT(message, HasSubstr("have not come to a monitored barrier within"));
    EXPECT_THAT(message, HasSubstr("rank " + std::to_string(late)));
  });
}

INSTANTIATE_TEST_SUITE_P(OfRanks,
                         MonitoredBarrier,
                         ::testing::Values(NodeLayout{{{0, 1}}},
                                           NodeLayout{{{0}, {1}}},
                                           NodeLayout{{{0, 2}, {1, 3}}}),
                         [](const auto& info) { return "Layout" + std::to_string(info.index); });

// Where both calls meet in the same place.
TEST(MonitoredBarrierErrors, ARankThatCallsAnotherBarrierIsNamedByBoth) {
  for (const NodeLayout& layout : {NodeLayout{{{0, 1}}}, NodeLayout{{{0}, {1}}}}) {
    std::atomic<int> num_named = 0;
    run_backends(layout, [&](ShmBackend& backend) {
      try {
        if (backend.getRank() == 0)
          backend.barrier({});
        else
          backend.monitoredBarrier(within(std::chrono::minutes(1)), false);
      } catch (const Error& error) {
        const std::string message = error.what();
        num_named += message.find("monitored barrier of 0 bytes") != std::string::npos ? 1 : 0;
      }
    });
    EXPECT_EQ(num_named.load(), 2);
  }
}

}  // namespace
}  // namespace accel::monitored_barrier_test
