#include "agent/rendezvous/clock_skew.h"

#include <algorithm>
#include <cstdio>

namespace accel::agent {

std::string ClockSkew::observe(Milliseconds theirs, Milliseconds ours) {
  seen_.push_back(theirs - ours);
  if (seen_.size() > kBeats) seen_.pop_front();
  if (seen_.size() < kBeats) return "";
  const Milliseconds skew = *seen();
  const Milliseconds worth_telling = std::chrono::abs(skew) > kTold ? skew : Milliseconds(0);
  const bool is_news = std::chrono::abs(worth_telling - told_) > kTold;
  if (!is_news) return "";
  told_ = worth_telling;
  if (told_.count() == 0) return "its clock agrees with this machine's again";
  char text[128];
  std::snprintf(text,
                sizeof text,
                "its clock is %.1f s %s this machine's: the times in its logs are off",
                static_cast<double>(std::chrono::abs(told_).count()) / 1000,
                told_.count() > 0 ? "ahead of" : "behind");
  return text;
}

std::optional<std::chrono::milliseconds> ClockSkew::seen() const {
  if (seen_.empty()) return std::nullopt;
  return *std::max_element(seen_.begin(), seen_.end());
}

}  // namespace accel::agent
