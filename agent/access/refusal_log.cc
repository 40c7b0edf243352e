#include "agent/access/refusal_log.h"

#include <utility>

namespace accel::agent {

std::optional<std::string> RefusalLog::admit(std::string line) {
  const TimePoint now = clock_.now();
  if (lines_.wait(now) > Duration::zero()) {
    ++num_left_out_;
    return std::nullopt;
  }
  lines_.take(1, now);
  if (num_left_out_ > 0)
    line +=
        " (" + std::to_string(std::exchange(num_left_out_, 0)) + " more refusals were not logged)";
  return line;
}

}  // namespace accel::agent
