#include "runtime/supervisor/watch/hang_clock.h"

#include <algorithm>
#include <utility>

namespace accel::supervisor {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kMostIntervals = 512;
constexpr std::size_t kEnoughIntervals = 10;

Duration percentile_99(std::deque<Duration> values) {
  const std::size_t at = (values.size() * 99 + 99) / 100 - 1;
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

}  // namespace

void HangClock::restart(TimePoint now) {
  ranks_.clear();
  intervals_.clear();
  slow_ranks_.clear();
  has_beaten_ = false;
  suspended_at_.reset();
  observed_at_ = now;
  comparison_.restart(now);
}

Duration HangClock::limit() const {
  if (policy_.mode == HangMode::kFixed) return policy_.timeout;
  const Duration floor = policy_.floor;
  if (intervals_.size() < kEnoughIntervals) return std::max<Duration>(floor, policy_.first_beat);
  return std::max(floor, percentile_99(intervals_) * policy_.safety);
}

Duration HangClock::limit_of(const Rank& rank) const {
  if (rank.beats == 0) return std::max<Duration>(limit(), policy_.first_beat);
  return rank.is_training ? limit() : std::max<Duration>(limit(), policy_.other_phase);
}

void HangClock::shift(Duration time) {
  for (auto& [number, rank] : ranks_) rank.heard_at += time;
  comparison_.shift(time);
}

void HangClock::resume(TimePoint now) {
  if (!suspended_at_) return;
  shift(now - *suspended_at_);
  observed_at_ = now;
  suspended_at_.reset();
}

void HangClock::hear(Rank& rank, const RankReport& report, TimePoint now) {
  // A count that went back is nothing that a worker does which keeps to the rules.
  if (report.beats != rank.beats) {
    const bool is_interval = rank.beats > 0 && report.beats > rank.beats;
    if (is_interval && rank.is_training && report.is_training) {
      const auto count = static_cast<Duration::rep>(report.beats - rank.beats);
      intervals_.push_back((now - rank.heard_at) / count);
      if (intervals_.size() > kMostIntervals) intervals_.pop_front();
    }
    rank.beats = report.beats;
    rank.heard_at = now;
  }
  rank.step = report.step;
  rank.is_training = report.is_training;
}

std::optional<Hang> HangClock::observe(TimePoint now, const std::vector<RankReport>& reports) {
  if (suspended_at_) return std::nullopt;
  const Duration passed = now - std::exchange(observed_at_, now);
  const bool is_paused = std::any_of(
      reports.begin(), reports.end(), [](const RankReport& report) { return report.is_stopped; });
  if (is_paused) shift(passed);
  const bool had_beaten = has_beaten_;
  for (const RankReport& report : reports) has_beaten_ = has_beaten_ || report.beats > 0;
  if (!has_beaten_) return std::nullopt;

  std::map<int, Rank> live;
  for (const RankReport& report : reports) {
    auto known = ranks_.find(report.global_rank);
    Rank rank = known == ranks_.end() || !had_beaten ? Rank{.heard_at = now} : known->second;
    hear(rank, report, now);
    live.emplace(report.global_rank, rank);
  }
  ranks_ = std::move(live);
  if (is_paused) return std::nullopt;
  compare_steps(now, reports);

  const auto is_over = [&](const auto& entry) {
    return now - entry.second.heard_at > limit_of(entry.second);
  };
  const auto over = std::find_if(ranks_.begin(), ranks_.end(), is_over);
  if (over == ranks_.end()) return std::nullopt;
  Hang hang = {.limit = limit_of(over->second)};
  const std::pair<const int, Rank>* first = nullptr;
  for (const auto& entry : ranks_) {
    const auto& [number, rank] = entry;
    if (now - rank.heard_at <= hang.limit / 2) continue;
    hang.silent_ranks.push_back(number);
    const bool is_earlier =
        first == nullptr ||
        std::pair(rank.step, rank.heard_at) < std::pair(first->second.step, first->second.heard_at);
    if (is_earlier) first = &entry;
  }
  hang.global_rank = first->first;
  hang.step = first->second.step;
  hang.silent_for = now - first->second.heard_at;
  return hang;
}

void HangClock::compare_steps(TimePoint now, const std::vector<RankReport>& reports) {
  for (const RankReport& report : reports) {
    if (report.beats > 0) {
      comparison_.see(report.global_rank, report.step, now, report.is_training);
    }
  }
  for (SlowRank& slow : comparison_.compare(now)) slow_ranks_.push_back(slow);
}

std::vector<SlowRank> HangClock::take_slow_ranks() {
  return std::exchange(slow_ranks_, {});
}

}  // namespace accel::supervisor
