#include "launcher/run/progress_line.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>

#include "runtime/text/counted.h"
#include "runtime/text/text_columns.h"

namespace accel::launcher {
namespace {

using supervisor::WorkerSnapshot;

constexpr std::chrono::seconds kRateWindow{10};

std::string with_digits(double value) {
  char text[32];
  std::snprintf(text, sizeof text, value < 10 ? "%.2f" : value < 100 ? "%.1f" : "%.0f", value);
  return text;
}

std::string hours_text(Duration time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time).count();
  char text[48];
  std::snprintf(text,
                sizeof text,
                "%lld:%02lld:%02lld",
                static_cast<long long>(seconds / 3600),
                static_cast<long long>(seconds / 60 % 60),
                static_cast<long long>(seconds % 60));
  return text;
}

// Of those that report and run. Fewer than all may: rank 0 alone, say.
const WorkerSnapshot* farthest_behind(const supervisor::Snapshot& snapshot) {
  const WorkerSnapshot* last = nullptr;
  for (const WorkerSnapshot& worker : snapshot.workers) {
    const bool counts = worker.is_alive && worker.beats > 0;
    if (counts && (last == nullptr || worker.step < last->step)) last = &worker;
  }
  return last;
}

}  // namespace

void ProgressLine::restarting() {
  ++num_restarts_;
  samples_.clear();
  last_.workers.clear();
}

void ProgressLine::take(const supervisor::Snapshot& snapshot, TimePoint now) {
  last_ = snapshot;
  const WorkerSnapshot* const last = farthest_behind(snapshot);
  if (last == nullptr) return;
  Sample sample{.at = now, .step = last->step, .samples = 0};
  for (const WorkerSnapshot& worker : snapshot.workers) sample.samples += worker.samples;
  const bool went_back = !samples_.empty() && (samples_.back().step > sample.step ||
                                               samples_.back().samples > sample.samples);
  if (went_back) samples_.clear();
  samples_.push_back(sample);
  // One of before the window stays, so that it is covered.
  while (samples_.size() > 2 && now - samples_[1].at >= kRateWindow) samples_.pop_front();
}

std::string ProgressLine::rates() const {
  if (samples_.size() < 2) return "";
  const Sample& first = samples_.front();
  const Sample& last = samples_.back();
  const double seconds = std::chrono::duration<double>(last.at - first.at).count();
  if (seconds <= 0 || last.step == first.step) return "";
  std::string text =
      " | " + with_digits(static_cast<double>(last.step - first.step) / seconds) + " steps/s";
  if (last.samples > first.samples)
    text += " | " + with_digits(static_cast<double>(last.samples - first.samples) / seconds) +
            " samples/s";
  return text;
}

// Ranks of one step apart take turns; two and more are news.
std::string ProgressLine::slowest() const {
  constexpr std::uint64_t kNews = 2;
  const WorkerSnapshot* const last = farthest_behind(last_);
  if (last == nullptr) return "";
  std::uint64_t most = last->step;
  for (const WorkerSnapshot& worker : last_.workers) {
    if (worker.is_alive && worker.beats > 0) most = std::max(most, worker.step);
  }
  if (most < last->step + kNews) return "";
  return " | slowest rank " + std::to_string(last->global_rank) + " (" +
         std::to_string(most - last->step) + " steps behind)";
}

std::string ProgressLine::text(TimePoint now, std::size_t columns) const {
  const WorkerSnapshot* const last = farthest_behind(last_);
  const bool has_step = last != nullptr && last->step > 0;
  if (when_ == ProgressWhen::kOff || (when_ == ProgressWhen::kAuto && !has_step) || columns < 2)
    return "";
  const std::string step = last != nullptr ? std::to_string(last->step) : "-";
  std::string text = "step " + step + rates() + slowest();
  if (num_restarts_ > 0) text += " | " + counted(num_restarts_, "restart");
  return fitted_columns(text + " | " + hours_text(now - started_), columns - 1);
}

}  // namespace accel::launcher
