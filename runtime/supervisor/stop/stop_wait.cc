#include "runtime/supervisor/stop/stop_wait.h"

#include <algorithm>
#include <array>
#include <ctime>

#include "runtime/supervisor/spawn/exit_error.h"

namespace accel::supervisor {
namespace {

constexpr std::size_t kMostRanks = 8;

// "rank 3", "ranks 0, 1, ... (16)".
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostRanks); ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kMostRanks) text += ", ... (" + std::to_string(ranks.size()) + ")";
  return text;
}

std::string time_of_day(std::chrono::system_clock::time_point when) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(when);
  std::tm parts = {};
  std::array<char, 16> text{};
  ::localtime_r(&seconds, &parts);
  return {text.data(), std::strftime(text.data(), text.size(), "%H:%M:%S", &parts)};
}

}  // namespace

std::string describe(const StopWait& wait) {
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(wait.left).count();
  std::string text =
      "waiting until " + time_of_day(wait.until) + " (" + std::to_string(seconds) + " s) for ";
  if (!wait.ranks.empty()) text += ranks_text(wait.ranks);
  if (!wait.ranks.empty() && !wait.descendants.empty()) text += " and ";
  if (!wait.descendants.empty())
    text += described(wait.descendants, "that ended ranks had started");
  return text + "; then they are killed. " +
         (wait.is_interrupt ? "Another Ctrl-C" : "Another stop") + " kills them now";
}

}  // namespace accel::supervisor
