#include "runtime/supervisor/lines/line_filter.h"

#include <algorithm>
#include <utility>

namespace accel::supervisor {

std::string LineFilter::feed(std::string_view bytes) {
  std::string matched;
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    const bool is_whole = newline != std::string_view::npos;
    const std::string_view part = bytes.substr(0, is_whole ? newline + 1 : bytes.size());
    bytes.remove_prefix(part.size());
    if (judged_ == Judged::kNot) {
      held_ += part;
      if (is_whole || held_.size() >= kMostHeld) judge_held(matched);
    } else if (judged_ == Judged::kMatches) {
      matched += part;
    }
    if (is_whole) judged_ = Judged::kNot;
  }
  return matched;
}

std::string LineFilter::finish() {
  std::string matched;
  if (!held_.empty()) judge_held(matched);
  if (judged_ == Judged::kMatches) matched += '\n';
  judged_ = Judged::kNot;
  return matched;
}

bool LineFilter::matches(std::string_view line) const {
  return std::any_of(texts_.begin(), texts_.end(), [&](const std::string& text) {
    return line.find(text) != std::string_view::npos;
  });
}

void LineFilter::judge_held(std::string& matched) {
  judged_ = matches(held_) ? Judged::kMatches : Judged::kDiffers;
  if (judged_ == Judged::kMatches) matched += header_ + held_;
  held_.clear();
}

}  // namespace accel::supervisor
