#include "libaccel/launch/own_host.h"

#include <gtest/gtest.h>

namespace accel::launch {
namespace {

TEST(OwnHost, IsAnAddressOfThisMachine) {
  EXPECT_TRUE(is_own_host("127.0.0.1"));
  EXPECT_TRUE(is_own_host("localhost"));
}

TEST(OwnHost, IsNoneThatAnInterfaceLacksAndNoName) {
  EXPECT_FALSE(is_own_host("192.0.2.1"));  // for documentation (RFC 5737)
  EXPECT_FALSE(is_own_host("not a name"));
}

}  // namespace
}  // namespace accel::launch
