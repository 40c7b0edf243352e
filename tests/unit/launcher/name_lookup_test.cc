#include "launcher/system/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::launcher::name_lookup_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(NameLookupTest, SaysWhyANameHasNoAddress) {
  const HostAddresses found = system_resolver()("no-such-name.invalid");

  ASSERT_FALSE(found);
  EXPECT_THAT(found.error().message(),
              HasSubstr("ame"));  // "Name or service not known", or of its resolution
}

TEST(NameLookupTest, ReadsWhatGetentPrints) {
  const auto addresses = addresses_of_getent(
      "10.0.0.7        STREAM gpu-07\n10.0.0.7        DGRAM  \n10.0.0.7        RAW    \n"
      "fe80::1         STREAM \nfe80::1         DGRAM  \n");

  EXPECT_THAT(addresses,
              ElementsAre(boost::asio::ip::make_address("10.0.0.7"),
                          boost::asio::ip::make_address("fe80::1")));
}

TEST(NameLookupTest, TakesNoAddressFromOtherLinesThanThoseOfGetent) {
  EXPECT_THAT(addresses_of_getent("usage: getent database\nSTREAM 10.0.0.7\n\n10.0.0.7\n"),
              IsEmpty());
}

}  // namespace
}  // namespace accel::launcher::name_lookup_test
