// ProfileAction: what a profiler does in a step of its schedule.
//
// Pure.
// Source:   torch.profiler.schedule() of PyTorch 2.11.
#pragma once

#include <cstdint>
#include <optional>

#include <accel/profile_kwargs.h>

namespace accel::profiling {

enum class ProfileAction {
  kNone,
  kWarmup,
  kRecord,
  kRecordAndSave,  // the last step of a cycle
};

// Throws kInvalidArgument for numbers that cannot be.
void check_schedule(const ProfileSchedule& schedule);

// Not set: it records in every step. Requires: step is 0 or above.
[[nodiscard]] ProfileAction action_of(const std::optional<ProfileSchedule>& schedule,
                                      std::int64_t step);

}  // namespace accel::profiling
