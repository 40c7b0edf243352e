#include "runtime/supervisor/lines/line_sampler.h"

#include <algorithm>

namespace accel::supervisor {

void LineSampler::begin(TimePoint now) {
  if (is_active_) return;
  is_active_ = true;
  ends_at_ = now + kWindow;
  distance_ = kFirstDistance;
  lines_to_skip_ = distance_;  // the line that is torn here is one of them
  is_candidate_ = false;
}

std::size_t LineSampler::end_if_over(TimePoint now) {
  return is_active_ && now >= ends_at_ ? end() : 0;
}

std::size_t LineSampler::end() {
  is_active_ = false;
  const std::size_t lost = candidate_.size();
  candidate_.clear();
  return lost;
}

// Returns how much is lost with it.
std::size_t LineSampler::take(std::string_view piece) {
  if (!is_candidate_) return piece.size();
  if (candidate_.size() + piece.size() <= kLongestLine) {
    candidate_ += piece;
    return 0;
  }
  const std::size_t lost = candidate_.size() + piece.size();
  candidate_.clear();
  is_candidate_ = false;
  lines_to_skip_ = 1;
  return lost;
}

void LineSampler::widen() {
  distance_ = std::min(distance_ * 2, kMostDistance);
}

void LineSampler::next_line() {
  candidate_.clear();
  if (is_candidate_) lines_to_skip_ = distance_;
  if (lines_to_skip_ > 0) --lines_to_skip_;
  is_candidate_ = lines_to_skip_ == 0;
}

}  // namespace accel::supervisor
