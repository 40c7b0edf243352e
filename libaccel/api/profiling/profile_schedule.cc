#include "libaccel/api/profiling/profile_schedule.h"

#include <string>

#include <accel/error.h>

namespace accel::profiling {

void check_schedule(const ProfileSchedule& schedule) {
  const auto& [wait, warmup, active, repeat, skip_first] = schedule;
  if (wait >= 0 && warmup >= 0 && active > 0 && repeat >= 0 && skip_first >= 0) return;
  throw Error(ErrorCode::kInvalidArgument,
              "Invalid profiler schedule arguments. Got wait=" + std::to_string(wait) +
                  " (need >= 0), warmup=" + std::to_string(warmup) + " (need >= 0), active=" +
                  std::to_string(active) + " (need > 0), repeat=" + std::to_string(repeat) +
                  " (need >= 0), skip_first=" + std::to_string(skip_first) + " (need >= 0).");
}

ProfileAction action_of(const std::optional<ProfileSchedule>& schedule, std::int64_t step) {
  if (!schedule) return ProfileAction::kRecord;
  if (step < schedule->skip_first) return ProfileAction::kNone;
  step -= schedule->skip_first;
  const std::int64_t length =
      std::int64_t{schedule->wait} + schedule->warmup + std::int64_t{schedule->active};
  if (schedule->repeat > 0 && step >= schedule->repeat * length) return ProfileAction::kNone;
  const std::int64_t place = step % length;
  if (place < schedule->wait) return ProfileAction::kNone;
  if (place < std::int64_t{schedule->wait} + schedule->warmup) return ProfileAction::kWarmup;
  return place < length - 1 ? ProfileAction::kRecord : ProfileAction::kRecordAndSave;
}

}  // namespace accel::profiling
