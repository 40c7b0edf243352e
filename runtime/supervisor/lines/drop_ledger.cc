#include "runtime/supervisor/lines/drop_ledger.h"

#include <utility>

namespace accel::supervisor {

std::string drop_marker(std::uint64_t bytes, bool at_line_start) {
  return std::string(at_line_start ? "" : "\n") + "[accel: " + std::to_string(bytes) +
         " bytes dropped]\n";
}

std::optional<std::string> DropLedger::begin(const std::string& reason, TimePoint now) {
  is_dropping_ = true;
  last_attempt_ = now;
  if (last_begin_notice_ && now - *last_begin_notice_ < kNoticeEvery) return std::nullopt;
  last_begin_notice_ = now;
  return sink_ + ": " + reason;
}

bool DropLedger::should_retry(TimePoint now) const noexcept {
  return !is_dropping_ || now - last_attempt_ >= kRetryEvery;
}

std::optional<std::string> DropLedger::end(TimePoint now) {
  is_dropping_ = false;
  dropped_ = 0;
  if (last_end_notice_ && now - *last_end_notice_ < kNoticeEvery) return std::nullopt;
  last_end_notice_ = now;
  return last_words();
}

std::optional<std::string> DropLedger::last_words() {
  if (unreported_ == 0) return std::nullopt;
  return sink_ + ": " + std::to_string(std::exchange(unreported_, 0)) + " bytes were dropped";
}

bool StallWatch::observe(std::uint64_t progress, bool is_wanted, TimePoint now) {
  if (progress != progress_ || !is_wanted) {
    if (progress != progress_) is_stalled_ = false;
    progress_ = progress;
    still_since_.reset();
    return is_stalled_;
  }
  if (!still_since_) still_since_ = now;
  if (now - *still_since_ >= limit_) is_stalled_ = true;
  return is_stalled_;
}

}  // namespace accel::supervisor
