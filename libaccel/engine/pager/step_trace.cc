#include "libaccel/engine/pager/step_trace.h"

#include <algorithm>
#include <utility>

namespace accel::pager {

StepTrace::StepTrace(std::size_t num_units) : positions_(num_units), last_use_(num_units, 0) {}

void StepTrace::use(std::size_t unit) {
  last_use_[unit] = ++clock_;
  if (!seen_.empty() && seen_.back() == unit) return;
  seen_.push_back(unit);
  if (expected_.empty()) return;
  if (position_ < expected_.size() && expected_[position_] == unit) {
    ++position_;
    return;
  }
  ++deviations_;
  const auto& places = positions_[unit];
  const auto later = std::lower_bound(places.begin(), places.end(), position_);
  if (later != places.end()) position_ = *later + 1;
}

void StepTrace::end_step() {
  position_ = 0;
  if (seen_.empty()) return;  // nothing was learned
  if (seen_ != expected_) {
    expected_ = seen_;
    for (auto& places : positions_) places.clear();
    for (std::size_t i = 0; i < expected_.size(); ++i) positions_[expected_[i]].push_back(i);
  }
  seen_.clear();
}

std::optional<std::size_t> StepTrace::next_use(std::size_t unit) const {
  const auto& places = positions_[unit];
  if (places.empty()) return std::nullopt;
  const auto later = std::lower_bound(places.begin(), places.end(), position_);
  if (later != places.end()) return *later - position_;
  return expected_.size() - std::min(position_, expected_.size()) + places.front();
}

std::vector<std::size_t> StepTrace::upcoming(std::size_t count) const {
  std::vector<std::size_t> units;
  for (std::size_t i = 0; i < expected_.size() && units.size() < count; ++i) {
    const std::size_t unit = expected_[(position_ + i) % expected_.size()];
    if (std::find(units.begin(), units.end(), unit) == units.end()) units.push_back(unit);
  }
  return units;
}

}  // namespace accel::pager
