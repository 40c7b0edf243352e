// What libaccel's trackers write, as `accel plot` reads it.

#include <cmath>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/curves/event_records.h"
#include "launcher/curves/run_log.h"
#include "libaccel/tracking/event_folder.h"
#include "libaccel/tracking/event_message.h"
#include "libaccel/tracking/line_files.h"
#include "tests/support/scratch_folder.h"

namespace accel::tracking::tracked_curves_test {
namespace {

using launcher::event_scalars;
using launcher::read_runs;
using launcher::RunLog;
using launcher::RunPoint;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::Key;

void write_all_kinds(TrackSink& sink) {
  sink.write({.kind = EntryKind::kConfig, .values = {{"lr", 0.5}}, .kwargs = {}, .wall_time = 99});
  sink.write({.values = {{"loss", 0.5}, {"note", "x"}}, .step = 3, .kwargs = {}, .wall_time = 100});
  sink.write(
      {.values = {{"loss", std::nan("")}, {"a,b", 1}}, .step = 4, .kwargs = {}, .wall_time = 101});
  sink.write({.values = {{"loss", 0.25}}, .step = 5, .kwargs = {}, .wall_time = 102.5});
  sink.drain();
}

void expect_the_curves(const std::string& path) {
  const auto runs = read_runs(path);
  ASSERT_TRUE(runs) << runs.error().message();
  ASSERT_EQ(runs->size(), 1U);
  const RunLog& run = runs->front();
  EXPECT_EQ(run.num_broken, 0U);
  ASSERT_THAT(run.metrics, ElementsAre(Key("a,b"), Key("loss")));
  const auto& loss = run.metrics.at("loss");
  EXPECT_THAT(
      loss,
      ElementsAre(Field(&RunPoint::step, 3), Field(&RunPoint::step, 4), Field(&RunPoint::step, 5)));
  EXPECT_EQ(loss[0].value, 0.5);
  EXPECT_TRUE(std::isnan(loss[1].value));
  EXPECT_EQ(loss[2].value, 0.25);
  EXPECT_EQ(loss[2].time, 102.5);
}

TEST(TrackedCurves, LinesOfJsonAreReadBack) {
  const test::ScratchFolder folder;
  JsonLines lines(folder.path() / "log.jsonl");

  write_all_kinds(lines);

  expect_the_curves(folder.path());
}

TEST(TrackedCurves, RowsOfCsvAreReadBack) {
  const test::ScratchFolder folder;
  CsvRows rows(folder.path() / "log.csv");

  write_all_kinds(rows);

  expect_the_curves(folder.path());
}

TEST(TrackedCurves, EventFilesAreReadBack) {
  const test::ScratchFolder folder;
  EventFolder events(folder.path(), "suffix");

  write_all_kinds(events);

  expect_the_curves(folder.path());
}

TEST(TrackedCurves, ATornRecordIsLeftOutAndABrokenOneEndsTheFile) {
  const std::string first = version_record(1) + event_record(scalar_summary("loss", 1), 1, 2);
  const std::string second = event_record(scalar_summary("loss", 2), 2, 3);
  for (std::size_t size = 0; size < second.size(); ++size) {
    const auto read = event_scalars(first + second.substr(0, size));
    EXPECT_EQ(read.scalars.size(), 1U) << size;
    EXPECT_FALSE(read.is_broken) << size;
  }
  EXPECT_EQ(event_scalars(first + second).scalars.size(), 2U);
  for (std::size_t place = 0; place < second.size(); ++place) {
    std::string broken = second;
    broken[place] = static_cast<char>(broken[place] ^ 0x40);
    const auto read = event_scalars(first + broken + second);
    EXPECT_EQ(read.scalars.size(), 1U) << place;
    EXPECT_TRUE(read.is_broken) << place;
  }
}

// A record whose checksums are right, around a message that ends too early.
TEST(TrackedCurves, AMessageThatIsCutWithinItsRecordIsBroken) {
  const WireMessage cut =
      WireMessage().add_bytes(1, "\x0A\x7F");  // a tag of 127 bytes, and none there
  const std::string record = event_record(cut, 1, 2);

  const auto read = event_scalars(record);

  EXPECT_TRUE(read.is_broken);
  EXPECT_TRUE(read.scalars.empty());
}

}  // namespace
}  // namespace accel::tracking::tracked_curves_test
