#include "libaccel/tracking/line_files.h"

#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libaccel/tracking/value_text.h"
#include "runtime/text/csv_row.h"
#include "tests/support/scratch_folder.h"

namespace accel::tracking {
namespace {

using ::testing::ElementsAre;

std::string text_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TrackEntry entry_of(TrackerDict values, std::optional<std::int64_t> step = std::nullopt) {
  return {.values = std::move(values), .step = step, .wall_time = 1.5};
}

TEST(ValueText, KeepsTheKindsOfNumbersAndTheOrderOfNames) {
  const TrackerDict values{{"b", 1}, {"a", 1.0}, {"c", true}, {"d", "x\"y"}, {"e", {}}};

  EXPECT_EQ(json_text(values), R"({"b":1,"a":1.0,"c":true,"d":"x\"y","e":null})");
}

TEST(ValueText, WritesWhatIsNotFiniteAsNullOrAsPythonDoes) {
  const TrackerValue nan = std::numeric_limits<double>::quiet_NaN();
  const TrackerValue infinity = -std::numeric_limits<double>::infinity();

  EXPECT_EQ(json_text(nan), "null");
  EXPECT_EQ(json_text(nan, NonFinite::kPython), "NaN");
  EXPECT_EQ(json_text(infinity, NonFinite::kPython), "-Infinity");
  EXPECT_EQ(csv_cell(nan), "nan");
  EXPECT_EQ(csv_cell(infinity), "-inf");
}

TEST(ValueText, ReplacesBytesThatAreNoUtf8) {
  EXPECT_EQ(json_text(std::string("a\xff")), "\"a\xEF\xBF\xBD\"");
}

TEST(JsonLines, WritesALineForEachEntryAndForTheConfiguration) {
  const test::ScratchFolder folder;
  JsonLines lines(folder.path() / "log.jsonl");

  lines.write({.kind = EntryKind::kConfig, .values = {{"lr", 0.1}}, .wall_time = 1.5});
  lines.write(entry_of({{"loss", 0.5}}, 3));
  lines.write(entry_of({{"note", "end"}}));
  EXPECT_EQ(lines.drain().bytes, 0U);

  EXPECT_EQ(text_of(folder.path() / "log.jsonl"),
            "{\"time\":1.5,\"config\":{\"lr\":0.1}}\n"
            "{\"step\":3,\"time\":1.5,\"loss\":0.5}\n"
            "{\"time\":1.5,\"note\":\"end\"}\n");
}

TEST(JsonLines, EndsALineThatAKilledProcessLeftOpen) {
  const test::ScratchFolder folder;
  std::ofstream(folder.path() / "log.jsonl") << "{\"step\":1,\"lo";
  JsonLines lines(folder.path() / "log.jsonl");

  lines.write(entry_of({{"loss", 0.5}}, 2));
  lines.drain();

  EXPECT_EQ(text_of(folder.path() / "log.jsonl"),
            "{\"step\":1,\"lo\n{\"step\":2,\"time\":1.5,\"loss\":0.5}\n");
}

TEST(CsvRows, AddsAColumnForANewNameAndKeepsTheRowsBefore) {
  const test::ScratchFolder folder;
  CsvRows rows(folder.path() / "log.csv");

  rows.write(entry_of({{"loss", 0.5}}, 1));
  rows.drain();
  rows.write(entry_of({{"eval", TrackerDict{{"f1", 0.25}}}}, 2));
  rows.drain();

  EXPECT_EQ(text_of(folder.path() / "log.csv"), "step,time,loss,eval/f1\n1,1.5,0.5\n2,1.5,,0.25\n");
}

TEST(CsvRows, GoesOnWithTheColumnsOfTheFileThatIsThere) {
  const test::ScratchFolder folder;
  {
    CsvRows rows(folder.path() / "log.csv");
    rows.write(entry_of({{"a,b", 1}, {"loss", 2}}, 1));
    rows.drain();
  }
  CsvRows rows(folder.path() / "log.csv");

  rows.write(entry_of({{"loss", 3}}, 2));
  rows.drain();

  EXPECT_EQ(text_of(folder.path() / "log.csv"), "step,time,\"a,b\",loss\n1,1.5,1,2\n2,1.5,,3\n");
}

TEST(CsvRows, QuotesTextWithLineEndsAndQuotes) {
  EXPECT_EQ(csv_cell("a\n\"b\""), "\"a\n\"\"b\"\"\"");
  std::string_view text = "a,\"b\"\"\nc\",d\n1,2,3";
  const CsvRow first = take_csv_row(text);
  const CsvRow second = take_csv_row(text);

  EXPECT_THAT(first.cells, ElementsAre("a", "b\"\nc", "d"));
  EXPECT_TRUE(first.has_end);
  EXPECT_THAT(second.cells, ElementsAre("1", "2", "3"));
  EXPECT_FALSE(second.has_end);
  EXPECT_EQ(text, "");
}

}  // namespace
}  // namespace accel::tracking
