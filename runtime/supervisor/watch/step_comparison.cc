#include "runtime/supervisor/watch/step_comparison.h"

#include <utility>

#include "runtime/robust_spread.h"

namespace accel::supervisor {
namespace {

using namespace std::chrono_literals;

constexpr Duration kWindow = 10s;
constexpr int kSlowWindows = 3;
constexpr std::size_t kEnoughRanks = 3;
constexpr double kSlowScore = 3.5;
constexpr double kSlowRatio = 1.1;

}  // namespace

void StepComparison::restart(TimePoint now) {
  ranks_.clear();
  window_at_ = now;
}

void StepComparison::see(int global_rank, std::uint64_t step, TimePoint at, bool is_training) {
  const auto [known, is_new] = ranks_.try_emplace(global_rank);
  Rank& rank = known->second;
  if (is_new || step < rank.begin_step) {
    rank.begin_step = step;
    rank.begin_at = at;
  }
  rank.step = step;
  rank.at = at;
  rank.is_training = is_training;
}

void StepComparison::shift(Duration time) {
  window_at_ += time;
  for (auto& [number, rank] : ranks_) {
    rank.begin_at += time;
    rank.at += time;
  }
}

std::vector<SlowRank> StepComparison::compare(TimePoint now) {
  if (now - window_at_ < kWindow) return {};
  window_at_ = now;
  std::vector<std::pair<int, double>> step_times;  // in nanoseconds
  std::vector<double> times;
  for (auto& [number, rank] : ranks_) {
    if (rank.step > rank.begin_step && rank.at > rank.begin_at && rank.is_training) {
      times.push_back(static_cast<double>((rank.at - rank.begin_at).count()) /
                      static_cast<double>(rank.step - rank.begin_step));
      step_times.emplace_back(number, times.back());
    }
    rank.begin_step = rank.step;
    rank.begin_at = rank.at;
  }
  if (times.size() < kEnoughRanks) return {};
  // Ranks that wait for each other are alike to the microsecond; a deviation of 1 % is still noise.
  const auto [median, sigma] = robust_spread(std::move(times));
  std::vector<SlowRank> slow_ranks;
  for (const auto& [number, time] : step_times) {
    Rank& rank = ranks_.at(number);
    const double score = (time - median) / sigma;
    const bool is_slow = score > kSlowScore && time >= kSlowRatio * median;
    rank.slow_windows = is_slow ? rank.slow_windows + 1 : 0;
    if (!is_slow) rank.is_named = false;
    if (rank.slow_windows < kSlowWindows || rank.is_named) continue;
    rank.is_named = true;
    slow_ranks.push_back({number,
                          Duration(static_cast<Duration::rep>(time)),
                          Duration(static_cast<Duration::rep>(median)),
                          score});
  }
  return slow_ranks;
}

}  // namespace accel::supervisor
