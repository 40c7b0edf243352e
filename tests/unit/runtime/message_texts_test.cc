#include <gtest/gtest.h>

#include "runtime/text/counted.h"
#include "runtime/text/seconds_text.h"

namespace accel {
namespace {

using namespace std::chrono_literals;

TEST(SecondsTextTest, HasNoMoreDigitsThanAReaderNeeds) {
  EXPECT_EQ(seconds_text(31s), "31 s");
  EXPECT_EQ(seconds_text(3'190ms), "3.1 s");
  EXPECT_EQ(seconds_text(3'040ms), "3 s");
  EXPECT_EQ(seconds_text(500ms), "0.5 s");
  EXPECT_EQ(seconds_text(50ms), "0.05 s");
  EXPECT_EQ(seconds_text(999'999us), "0.999 s");
  EXPECT_EQ(seconds_text(0s), "0 s");
}

TEST(CountedTest, ThingsAreInThePluralButForOne) {
  EXPECT_EQ(counted(1, "node"), "1 node");
  EXPECT_EQ(counted(0, "node"), "0 nodes");
  EXPECT_EQ(counted(std::size_t{2}, "core"), "2 cores");
}

}  // namespace
}  // namespace accel
