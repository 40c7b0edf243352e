// Tables of numbers with a class for each row, and what is wrong with others.

#include "train/labelled_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

namespace accel::train::labelled_table_test {
namespace {

using ::testing::ElementsAre;

std::string reason(std::string_view text) {
  const auto table = parse_labelled_table(text, "label", "a.csv");
  return table ? "accepted" : table.error().message();
}

TEST(LabelledTable, TakesTheClassFromWhicheverColumn) {
  const LabelledTable table =
      or_throw(parse_labelled_table("x,label,y\n1,0,2.5\n-3, 7 ,4e1\r\n\n", "label", "a.csv"));

  EXPECT_THAT(table.columns, ElementsAre("x", "y"));
  EXPECT_THAT(table.values, ElementsAre(1.0F, 2.5F, -3.0F, 40.0F));
  EXPECT_THAT(table.labels, ElementsAre(0, 7));
}

TEST(LabelledTable, NamesLineAndColumnOfWhatIsWrong) {
  EXPECT_EQ(reason("x,label\n1,0\n2\n"), "a.csv:3: 1 cells, and the first line has 2");
  EXPECT_EQ(reason("x,label\n1,0\ncat,1\n"), "a.csv:3: column 1 is 'cat', expected a number");
  EXPECT_EQ(reason("x,label\n1,-1\n"),
            "a.csv:2: column 2 is '-1', expected a whole number of at least 0");
  EXPECT_EQ(reason("x,label\n1,\n"),
            "a.csv:2: column 2 is '', expected a whole number of at least 0");
}

TEST(LabelledTable, WithoutClassOrRowsIsRefused) {
  EXPECT_EQ(reason("x,y\n1,0\n"), "a.csv has no column called label");
  EXPECT_EQ(reason("label,label\n1,0\n"), "a.csv has several columns called label");
  EXPECT_EQ(reason("x,label\n"), "a.csv has no rows");
  EXPECT_EQ(reason(""), "a.csv has no rows");
}

}  // namespace
}  // namespace accel::train::labelled_table_test
