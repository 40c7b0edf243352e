// What stands before the lines of a worker.

#include "runtime/supervisor/lines/line_prefix.h"

#include <gtest/gtest.h>

namespace accel::supervisor::line_prefix_test {
namespace {

const LineOrigin kOrigin = {.global_rank = 5, .local_rank = 1, .role = "trainer", .stream = "err"};

TEST(LinePrefix, WithoutATemplateNamesRankAndStream) {
  EXPECT_EQ(line_prefix("", kOrigin), "[r5 err] ");
}

TEST(LinePrefix, WordsOfTorchrunAreReplaced) {
  EXPECT_EQ(line_prefix("[${role_name}${local_rank}|${rank}]:", kOrigin), "[trainer1|5]:");
}

TEST(LinePrefix, OtherWordsStay) {
  EXPECT_EQ(line_prefix("${host} $hosts ${rank", kOrigin), "${host} $hosts ${rank");
  EXPECT_EQ(line_prefix("${RANK} $ranks ${rank }", kOrigin), "${RANK} $ranks ${rank }");
  EXPECT_EQ(line_prefix("5$ ${} $1 {rank} $", kOrigin), "5$ ${} $1 {rank} $");
}

TEST(LinePrefix, WordsNeedNoBracesAndTwoDollarsAreOne) {
  EXPECT_EQ(line_prefix("$role_name/$local_rank.$rank-", kOrigin), "trainer/1.5-");
  EXPECT_EQ(line_prefix("$$rank $${rank} $$$rank", kOrigin), "$rank ${rank} $5");
}

TEST(LinePrefix, WhatIsPutInIsNotReplacedAgain) {
  EXPECT_EQ(line_prefix("${role_name}", {.global_rank = 5, .role = "${rank}"}), "${rank}");
}

}  // namespace
}  // namespace accel::supervisor::line_prefix_test
