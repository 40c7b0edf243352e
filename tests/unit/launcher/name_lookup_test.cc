#include "launcher/system/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::name_lookup_test {
namespace {

using ::testing::HasSubstr;

TEST(NameLookupTest, SaysWhyANameHasNoAddress) {
  const HostAddresses found = system_resolver()("no-such-name.invalid");

  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message(),
              HasSubstr("ame"));  // "Name or service not known", or of its resolution
}

}  // namespace
}  // namespace accel::launcher::name_lookup_test
