#include "agent/rendezvous/reconnect_pause.h"

#include <algorithm>

namespace accel::agent {
namespace {

constexpr double kFirstMs = 50;
constexpr double kLeastLongestMs = 1'000;
constexpr double kMsPerNode = 1.5 * 1'000 / 5'000;
constexpr int kMostDoublings = 16;

}  // namespace

std::chrono::milliseconds reconnect_pause(const ReconnectFacts& facts) {
  const double longest = std::max(kLeastLongestMs, kMsPerNode * facts.num_nodes);
  const int doublings = std::clamp(facts.num_losses - 1, 0, kMostDoublings);
  const double most = std::min(kFirstMs * static_cast<double>(1 << doublings), longest);
  return std::chrono::milliseconds(static_cast<int>(most * (1 + facts.chance) / 2));
}

}  // namespace accel::agent
