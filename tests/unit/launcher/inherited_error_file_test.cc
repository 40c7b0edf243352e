#include "launcher/run/inherited_error_file.h"

#include <csignal>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/scratch_folder.h"

namespace accel::launcher::inherited_error_file_test {
namespace {

supervisor::JobOutcome failed(supervisor::WorkerExit exit) {
  return {.exit_code = 1, .reason = "failed", .first_failure = exit, .exits = {{}, exit}};
}

nlohmann::json file_of(const supervisor::JobOutcome& outcome) {
  return nlohmann::json::parse(error_file_of(outcome, 2, 1700000000));
}

TEST(InheritedErrorFile, HasWhatTheFirstRankThatFailedSaid) {
  supervisor::WorkerExit exit = {.global_rank = 1, .exit_code = 3};
  exit.cause = supervisor::ExitCause::kNonZero;
  exit.error_file =
      R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "T"}}})";
  const auto json = file_of(failed(exit));

  EXPECT_EQ(json["message"]["message"], "ValueError: no");
  EXPECT_EQ(json["message"]["extraInfo"]["py_callstack"], "T");
  EXPECT_EQ(json["message"]["errorCode"], 3);

  exit.error_file = R"({"message": "plain"})";
  EXPECT_EQ(file_of(failed(exit))["message"], "plain");
}

TEST(InheritedErrorFile, TellsHowARankEndedThatSaidNothingOrNonsense) {
  supervisor::WorkerExit exit = {.global_rank = 1, .signal = SIGSEGV};
  exit.cause = supervisor::ExitCause::kSignaled;
  for (const char* content : {"", "{", "[]", R"({"other": 1})", "{\"message\": \"\xff\"}"}) {
    exit.error_file = content;
    const auto json = file_of(failed(exit));

    EXPECT_EQ(json["message"]["message"], "rank 1 of 2 was ended by SIGSEGV (Segmentation fault)");
    EXPECT_EQ(json["message"]["extraInfo"]["timestamp"], "1700000000");
    EXPECT_EQ(json["message"]["errorCode"], -SIGSEGV);
  }
}

TEST(InheritedErrorFile, IsWrittenOnlyAfterAFailureAndWhereItWasAskedFor) {
  test::ScratchFolder folder;
  const EnvMap environment = {{"TORCHELASTIC_ERROR_FILE", folder.file("error.json")}};

  ASSERT_TRUE(keep_error_file({.success = true}, 2, environment));
  ASSERT_TRUE(keep_error_file({.exit_code = 130, .reason = "stopped by SIGINT"}, 2, environment));
  EXPECT_FALSE(std::filesystem::exists(folder.file("error.json")));

  const auto outcome = failed({.global_rank = 1, .exit_code = 3});
  ASSERT_TRUE(keep_error_file(outcome, 2, {}));
  EXPECT_FALSE(std::filesystem::exists(folder.file("error.json")));
  ASSERT_TRUE(keep_error_file(outcome, 2, environment));
  EXPECT_TRUE(std::filesystem::exists(folder.file("error.json")));

  const auto refused =
      keep_error_file(outcome, 2, {{"TORCHELASTIC_ERROR_FILE", folder.file("none/error.json")}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kFileIo);
}

}  // namespace
}  // namespace accel::launcher::inherited_error_file_test
