#include "launcher/commands/export/export_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/commands/export/export_script.h"

namespace accel::launcher {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(ExportCommand, AnErrorOfTheScriptKeepsItsCodeMessageAndRemedy) {
  const auto report = export_report(
      R"({"error": {"id": "file.io", "message": "no folder", "remedy": "name another"}})", 1);

  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), ErrorCode::kFileIo);
  EXPECT_EQ(report.error().message(), "no folder");
  EXPECT_EQ(report.error().remedy(), "name another");
}

TEST(ExportCommand, AnErrorOfUnknownIdIsInternal) {
  const auto report = export_report(R"({"error": {"id": "nobody", "message": 3}})", 1);

  ASSERT_FALSE(report.has_value());
  EXPECT_EQ(report.error().code(), ErrorCode::kInternal);
}

TEST(ExportCommand, AnExportIsReportedWithItsDifferences) {
  const auto report = export_report(
      R"({"done": {"class": "Net", "parameters": 20, "differences": {"eval": 0.0, "train": 1e-8}}})",
      0);

  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(*report, StartsWith("Net with 20 parameters"));
  EXPECT_THAT(*report, HasSubstr("0.0 in eval(), 1e-08 in train()"));
}

TEST(ExportCommand, WhatIsCompiledHasADifferenceOfItsOwn) {
  const auto report = export_report(
      R"({"done": {"class": "Net", "parameters": 20, "differences": {"eval": 0.0, "compiled": 2e-7}}})",
      0);

  ASSERT_TRUE(report.has_value());
  EXPECT_THAT(*report, HasSubstr("0.0 in eval(), 2e-07 compiled, "));
}

TEST(ExportCommand, APythonWithoutAnAnswerIsAnError) {
  for (const char* output : {"", "{", "[]", "3", "{}", R"({"done": {}})"}) {
    const auto report = export_report(output, 139);
    ASSERT_FALSE(report.has_value()) << output;
    EXPECT_EQ(report.error().code(), ErrorCode::kWorkerFailed) << output;
    EXPECT_THAT(report.error().message(), HasSubstr("139")) << output;
  }
}

// A word of a command line has at most 128 KiB in Linux.
TEST(ExportCommand, TheScriptIsWholeAndFitsACommandLine) {
  EXPECT_THAT(std::string(export_script()), StartsWith("\"\"\"Writes a model of Python"));
  EXPECT_THAT(std::string(export_script()), EndsWith("sys.exit(main(sys.argv[1:]))\n"));
  EXPECT_LT(export_script().size(), 128U * 1024);
}

}  // namespace
}  // namespace accel::launcher
