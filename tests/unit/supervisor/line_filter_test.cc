#include "runtime/supervisor/lines/line_filter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace accel::supervisor::line_filter_test {
namespace {

// What is kept of a text that comes in pieces of `size` bytes.
std::string kept(const std::string& text, std::size_t size, std::vector<std::string> texts) {
  LineFilter filter(std::move(texts), "[r0]:");
  std::string all;
  for (std::size_t i = 0; i < text.size(); i += size) all += filter.feed(text.substr(i, size));
  return all + filter.finish();
}

TEST(LineFilter, KeepsLinesWithOneOfTheTextsHoweverTheyCome) {
  const std::string text = "an apple\nnothing\nan orange and an apple\n\nappl\ne\nlast apple";
  for (std::size_t size = 1; size <= text.size(); ++size)
    EXPECT_EQ(kept(text, size, {"apple", "orange"}),
              "[r0]:an apple\n[r0]:an orange and an apple\n[r0]:last apple\n")
        << size;
  EXPECT_EQ(kept(text, 7, {"pear"}), "");
  EXPECT_EQ(kept("a\n\n", 7, {""}), "[r0]:a\n[r0]:\n");  // as in Python, it is in every line
}

TEST(LineFilter, ALongLineIsJudgedByItsBegin) {
  const std::string filling(3 * LineFilter::kMostHeld, '.');
  EXPECT_EQ(kept("apple" + filling + "\nnext\n", 1000, {"apple"}), "[r0]:apple" + filling + "\n");
  EXPECT_EQ(kept(filling + "apple\nan apple\n", 1000, {"apple"}), "[r0]:an apple\n");
}

}  // namespace
}  // namespace accel::supervisor::line_filter_test
