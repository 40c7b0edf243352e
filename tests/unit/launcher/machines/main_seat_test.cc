// Who is machine 0 when the store cannot be opened.

#include "launcher/start/machines/main_seat.h"

#include <gtest/gtest.h>

namespace accel::launcher::main_seat_test {
namespace {

TEST(MainSeat, IsTakenWithoutAMachineRankWhenTheAddressOrThePortIsAnothers) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, true, false, true), MainSeat::kTaken);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, true, false, true), MainSeat::kTaken);
}

TEST(MainSeat, IsUnclearForMachineRank0WithoutTheAddressUntilItListensOnAll) {
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, false, true),
            MainSeat::kUnclear);
  EXPECT_EQ(seat_without_store(ErrorCode::kInvalidArgument, false, true, true), MainSeat::kOurs);
}

TEST(MainSeat, IsOursWhenThePortNeedsARightThatWeDoNotHave) {
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, true, false, true), MainSeat::kOurs);
  EXPECT_EQ(seat_without_store(ErrorCode::kUnsupported, false, false, true), MainSeat::kOurs);
}

TEST(MainSeat, IsContestedForMachineRank0WhosePortIsHeldBeforeTheStoreWasItsOwn) {
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, false, true), MainSeat::kContested);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, true, true), MainSeat::kContested);
  EXPECT_EQ(seat_without_store(ErrorCode::kPortInUse, false, false, false), MainSeat::kOurs);
}

}  // namespace
}  // namespace accel::launcher::main_seat_test
