#include "libaccel/launch/own_host.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace accel::launch::own_host_test {
namespace {

TEST(OwnHost, IsAnAddressOfThisMachine) {
  EXPECT_TRUE(is_own_host("127.0.0.1"));
  EXPECT_TRUE(is_own_host("localhost"));
}

TEST(OwnHost, IsTheNameOfThisMachineWhateverTheNameServiceSays) {
  char name[256] = {};
  ASSERT_EQ(::gethostname(name, sizeof name - 1), 0);

  EXPECT_TRUE(is_own_host(name));
}

TEST(OwnHost, IsNoAddressThatEveryMachineHas) {
  EXPECT_FALSE(is_own_host("0.0.0.0"));
  EXPECT_FALSE(is_own_host("::"));
}

TEST(OwnHost, IsNoneThatAnInterfaceLacksAndNoName) {
  EXPECT_FALSE(is_own_host("192.0.2.1"));  // for documentation (RFC 5737)
  EXPECT_FALSE(is_own_host("not a name"));
}

}  // namespace
}  // namespace accel::launch::own_host_test
