// Who is machine 0 when the store cannot be opened.

#include "launcher/static/main_seat.h"

#include <gtest/gtest.h>

namespace accel::launcher {
namespace {

TEST(MainSeat, IsTakenWithoutAMachineRankWhenTheAddressOrThePortIsAnothers) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, true, false), MainSeat::kTaken);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, true, false), MainSeat::kTaken);
}

TEST(MainSeat, IsUnclearForMachineRank0WithoutTheAddressUntilItListensOnAll) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, false), MainSeat::kUnclear);
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, true), MainSeat::kOurs);
}

TEST(MainSeat, IsOursWhenThePortNeedsARightThatWeDoNotHave) {
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, true, false), MainSeat::kOurs);
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, false, false), MainSeat::kOurs);
}

TEST(MainSeat, IsOursForMachineRank0WhosePortIsHeld) {
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, false), MainSeat::kOurs);
}

}  // namespace
}  // namespace accel::launcher
