#include "agent/refusal_log.h"

#include <algorithm>
#include <utility>

namespace accel::agent {
namespace {

constexpr std::chrono::seconds kRefill{1};

}  // namespace

std::optional<std::string> RefusalLog::admit(std::string line) {
  const TimePoint now = clock_.now();
  const auto refills = (now - filled_at_) / kRefill;
  if (refills >= kBurst) {
    tokens_ = kBurst;
    filled_at_ = now;
  } else {
    tokens_ = std::min(kBurst, tokens_ + static_cast<int>(refills));
    filled_at_ += refills * kRefill;
  }
  if (tokens_ == 0) {
    ++num_left_out_;
    return std::nullopt;
  }
  --tokens_;
  if (num_left_out_ > 0)
    line +=
        " (" + std::to_string(std::exchange(num_left_out_, 0)) + " more refusals were not logged)";
  return line;
}

}  // namespace accel::agent
