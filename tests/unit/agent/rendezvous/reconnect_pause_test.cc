#include "agent/rendezvous/reconnect_pause.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::agent::reconnect_pause_test {
namespace {

using namespace std::chrono_literals;

TEST(ReconnectPause, Fault54TheFirstIsShorterThanTheTimeAfterWhichALoneLossCounts) {
  EXPECT_EQ(reconnect_pause({.num_losses = 1, .num_nodes = 10'000, .chance = 0}), 25ms);
  EXPECT_LT(reconnect_pause({.num_losses = 1, .num_nodes = 10'000, .chance = 0.999}), 50ms);
}

TEST(ReconnectPause, Fault54GrowsToASecondOfFewNodesAndLongerOfMany) {
  EXPECT_EQ(reconnect_pause({.num_losses = 100, .num_nodes = 3, .chance = 0}), 500ms);
  EXPECT_LE(reconnect_pause({.num_losses = 100, .num_nodes = 3, .chance = 0.999}), 1s);
  EXPECT_EQ(reconnect_pause({.num_losses = 100, .num_nodes = 10'000, .chance = 0}), 1500ms);
  EXPECT_LE(reconnect_pause({.num_losses = 100, .num_nodes = 10'000, .chance = 0.999}), 3s);
}

// When the nodes come back, in milliseconds after the end of the outage: their tries before it fail at once.
std::vector<double> arrivals(int num_nodes, double outage_ms) {
  std::mt19937 generator(54);
  std::uniform_real_distribution<double> draw(0, 1);
  std::vector<double> times;
  for (int node = 0; node < num_nodes; ++node) {
    double at = 0;
    for (int losses = 1; at < outage_ms; ++losses) {
      at += static_cast<double>(
          reconnect_pause({.num_losses = losses, .num_nodes = num_nodes, .chance = draw(generator)})
              .count());
    }
    times.push_back(at - outage_ms);
  }
  std::sort(times.begin(), times.end());
  return times;
}

int most_within_a_second(const std::vector<double>& times) {
  int most = 0;
  for (auto first = times.begin(), last = first; first != times.end(); ++first) {
    while (last != times.end() && *last - *first < 1'000) ++last;
    most = std::max(most, static_cast<int>(last - first));
  }
  return most;
}

TEST(ReconnectPause, Fault54AfterAnOutageTheNodesOfALargeClusterComeAtFiveThousandASecondAtMost) {
  for (const double outage_ms : {5'000.0, 12'345.0, 60'000.0}) {
    const auto times = arrivals(10'000, outage_ms);
    EXPECT_LE(most_within_a_second(times), 5'000) << outage_ms;
    EXPECT_LE(times.back(), 3'000) << outage_ms;
  }
}

TEST(ReconnectPause, Fault54ASmallClusterIsBackWithinASecond) {
  for (const double outage_ms : {100.0, 1'000.0, 5'000.0, 60'000.0})
    EXPECT_LE(arrivals(1'000, outage_ms).back(), 1'000) << outage_ms;
}

}  // namespace
}  // namespace accel::agent::reconnect_pause_test
