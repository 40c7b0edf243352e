#include "runtime/printable.h"

#include <gtest/gtest.h>

namespace accel::printable_test {
namespace {

TEST(Printable, KeepsTextNewlinesTabsAndUtf8) {
  EXPECT_EQ(printable("loss 0.25\n\tend"), "loss 0.25\n\tend");
  EXPECT_EQ(printable("\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80"),
            "\xC3\xA9 \xE2\x82\xAC \xF0\x9F\x98\x80");
}

TEST(Printable, ReplacesControlCharacters) {
  EXPECT_EQ(printable("\x1B[2J\r\x7F"), "?[2J??");
  EXPECT_EQ(printable(std::string_view("a\0b", 3)), "a?b");
}

TEST(Printable, ReplacesC1ControlsAndBytesThatAreNoUtf8) {
  EXPECT_EQ(printable("\xC2\x9B"), "??");            // CSI as UTF-8
  EXPECT_EQ(printable("\xC0\xAF"), "??");            // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), "???");       // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80"), "????");  // above U+10FFFF
  EXPECT_EQ(printable("\xE2\x82"), "??");            // cut off
  EXPECT_EQ(printable("\x80"), "?");
}

}  // namespace
}  // namespace accel::printable_test
