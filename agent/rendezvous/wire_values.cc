#include "agent/rendezvous/wire_values.h"

#include <algorithm>

namespace accel::agent {

using google::protobuf::Duration;

void set_time(Duration& out, Milliseconds time) {
  out.set_seconds(time.count() / 1000);
  out.set_nanos(static_cast<int>(time.count() % 1000) * 1'000'000);
}

Milliseconds ms_of(const Duration& time) {
  const std::int64_t seconds = std::clamp<std::int64_t>(time.seconds(), 0, kMostMs / 1000);
  return Milliseconds(seconds * 1000 + std::clamp(time.nanos(), 0, 999'999'999) / 1'000'000);
}

int bounded(std::uint32_t value, int most) {
  return static_cast<int>(std::min<std::uint32_t>(value, static_cast<std::uint32_t>(most)));
}

}  // namespace accel::agent
