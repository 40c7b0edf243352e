#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>
#include <accel/result.h>

namespace accel::error_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Error, EveryCodeHasAnIdASummaryAndARemedy) {
  for (int i = 0; i < static_cast<int>(ErrorCode::kCount_); ++i) {
    const ErrorInfo& info = error_info(static_cast<ErrorCode>(i));
    EXPECT_FALSE(info.id.empty()) << i;
    EXPECT_FALSE(info.summary.empty()) << info.id;
    EXPECT_FALSE(info.remedy.empty()) << info.id;
    EXPECT_GT(info.exit_status, 0) << info.id;
    EXPECT_LT(info.exit_status, 256) << info.id;
  }
}

TEST(Error, RendersNothingThatATerminalObeys) {
  const Error error = Error(ErrorCode::kScriptMissing, "there is no \x1b[31mred\xff", "see \x1b[2J")
                          .with_detail("at", "\x07");
  const std::string text = error.render();
  EXPECT_THAT(text, HasSubstr("there is no ?[31mred?"));
  EXPECT_THAT(text, HasSubstr("see ?[2J"));
  EXPECT_EQ(text.find_first_of("\x1b\x07\xff"), std::string::npos);
}

TEST(Error, BeginsNoLineWithWordsOfItsMessage) {
  const std::string text =
      Error(ErrorCode::kScriptMissing, "there is no a\naccel: error [x]: b").render();
  EXPECT_THAT(text, HasSubstr("there is no a\n  accel: error [x]: b\n"));
}

TEST(Error, RendersMessageContextRemedyAndAnchor) {
  Error error = Error(ErrorCode::kPortInUse, "cannot listen on 127.0.0.1:29500")
                    .while_doing("starting the store");

  const std::string text = error.render();

  EXPECT_EQ(text,
            "accel: error [store.port_in_use]: cannot listen on 127.0.0.1:29500\n"
            "  while     starting the store\n"
            "  try       give another port with --main_process_port (--master-port), or 0 for any "
            "free one\n"
            "  more      docs/reference/errors.md#store-port-in-use");
}

TEST(Error, AGivenRemedyReplacesTheDefaultOne) {
  const Error error(ErrorCode::kPortInUse, "busy", "stop process 42");

  EXPECT_EQ(error.remedy(), "stop process 42");
  EXPECT_THAT(error.render(), Not(HasSubstr("--main_process_port")));
}

TEST(Result, CarriesAValueOrAnError) {
  const Result<int> good = 3;
  const Result<int> bad = Error(ErrorCode::kUsage, "no script");

  ASSERT_TRUE(good);
  EXPECT_EQ(*good, 3);
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().code(), ErrorCode::kUsage);
}

TEST(Result, OrThrowAndToResultAreInverse) {
  const Result<int> round =
      to_result([] { return or_throw(Result<int>(Error(ErrorCode::kUsage, "no script"))); });

  ASSERT_FALSE(round);
  EXPECT_EQ(round.error().message(), "no script");
}

}  // namespace
}  // namespace accel::error_test
