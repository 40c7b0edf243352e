#include "launcher/start/machines/main_seat.h"

namespace accel::launcher {

MainSeat seat_without_store(ErrorCode why, bool draws_rank, bool is_translated, bool is_first) {
  const bool is_elsewhere = why == ErrorCode::kInvalidArgument;
  if (draws_rank)
    return is_elsewhere || why == ErrorCode::kPortInUse ? MainSeat::kTaken : MainSeat::kOurs;
  if (why == ErrorCode::kPortInUse && is_first) return MainSeat::kContested;
  return is_elsewhere && !is_translated ? MainSeat::kUnclear : MainSeat::kOurs;
}

}  // namespace accel::launcher
