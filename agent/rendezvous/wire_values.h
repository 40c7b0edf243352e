// WireValues: times and counts of the protocol as those of the domain, within its limits.
//
// Threads:  pure functions.
#pragma once

#include <cstdint>

#include <google/protobuf/duration.pb.h>

#include "agent/coordinator/messages/messages.h"

namespace accel::agent {

inline constexpr int kMostNodes = 1'000'000;
inline constexpr int kMostRanks = 10'000'000;
inline constexpr int kMostRestarts = 1'000'000;
inline constexpr std::int64_t kMostMs = 366LL * 86'400'000;

void set_time(google::protobuf::Duration& out, Milliseconds time);

// From 0 to kMostMs.
[[nodiscard]] Milliseconds ms_of(const google::protobuf::Duration& time);

// At most `most`, which is not negative.
[[nodiscard]] int bounded(std::uint32_t value, int most);

}  // namespace accel::agent
