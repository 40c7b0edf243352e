// Under which address this node is reached.

#include "libaccel/engine/remote/own_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::sharding::own_address_test {
namespace {

using ::testing::HasSubstr;

TEST(OwnAddress, IsTheLoopbackTowardsAStoreOnThisMachine) {
  EXPECT_EQ(*address_towards("127.0.0.1", 29500), "127.0.0.1");
}

TEST(OwnAddress, IsThatOfTheInterfaceThatIsNamed) {
  EXPECT_EQ(*address_of_interface("lo"), "127.0.0.1");
}

TEST(OwnAddress, NamesAnInterfaceThatIsNotThere) {
  const auto address = address_of_interface("nosuch0");
  ASSERT_FALSE(address);
  EXPECT_EQ(address.error().code(), ErrorCode::kEnvInvalid);
  EXPECT_THAT(address.error().message(), HasSubstr("'nosuch0'"));
}

TEST(OwnAddress, NamesAHostThatNobodyKnows) {
  const auto address = address_towards("no such host", 1);
  ASSERT_FALSE(address);
  EXPECT_THAT(address.error().message(), HasSubstr("'no such host'"));
}

}  // namespace
}  // namespace accel::sharding::own_address_test
