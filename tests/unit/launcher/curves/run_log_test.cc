// What libaccel's trackers write is read back in tests/unit/tracking/tracked_curves_test.cc.

#include "launcher/curves/run_log.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "launcher/curves/tracking_file.h"
#include "tests/support/scratch_folder.h"

namespace accel::launcher::run_log_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

auto is_at(double step, double value) {
  return AllOf(Field(&RunPoint::step, step), Field(&RunPoint::value, value));
}

auto is_gap(double step) {
  return AllOf(Field(&RunPoint::step, step),
               Field(&RunPoint::value, ::testing::Truly([](double v) { return std::isnan(v); })));
}

RunLog only_run(const std::string& path) {
  const auto runs = read_runs(path);
  EXPECT_TRUE(runs) << runs.error().message();
  EXPECT_EQ(runs ? runs->size() : 0, 1U);
  return runs && runs->size() == 1 ? runs->front() : RunLog();
}

std::string message_of(const std::string& path) {
  const auto runs = read_runs(path);
  return runs ? "" : runs.error().message();
}

TEST(RunLog, TakesNumbersAtAnyDepthAndNeitherTextsNorTheConfiguration) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("a/log.jsonl",
                                        "{\"time\":1.0,\"config\":{\"lr\":0.5}}\n"
                                        "{\"step\":1,\"time\":2.0,\"loss\":{\"train\":3,\"note\":"
                                        "\"x\"},\"best\":true,\"name\":\"y\",\"list\":[1]}\n");

  const RunLog run = only_run(path);

  EXPECT_THAT(run.metrics,
              ElementsAre(Pair("best", ElementsAre(is_at(1, 1))),
                          Pair("loss/train", ElementsAre(is_at(1, 3)))));
  EXPECT_EQ(run.num_broken, 0U);
}

TEST(RunLog, MakesGapsOfWhatIsNotFiniteAlsoAsPythonWritesIt) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("x.jsonl",
                                        "{\"step\":1,\"loss\":null}\n"
                                        "{\"step\":2,\"loss\":NaN,\"text\":\"NaN \\\" NaN\"}\n"
                                        "{\"step\":3,\"loss\":-Infinity}\n"
                                        "{\"step\":4,\"loss\":0.5}\n");

  const RunLog run = only_run(path);

  EXPECT_THAT(
      run.metrics,
      ElementsAre(Pair("loss", ElementsAre(is_gap(1), is_gap(2), is_gap(3), is_at(4, 0.5)))));
  EXPECT_EQ(run.num_broken, 0U);
}

TEST(RunLog, CountsBrokenLinesButNotTheOneThatIsBeingWritten) {
  const test::ScratchFolder folder;
  const std::string path = folder.write("x.jsonl",
                                        "{\"step\":1,\"loss\":1}\nnonsense\n[1]\n\n"
                                        "{\"step\":2,\"loss\":2}\n{\"step\":3,\"lo");

  const RunLog run = only_run(path);

  EXPECT_THAT(run.metrics, ElementsAre(Pair("loss", ElementsAre(is_at(1, 1), is_at(2, 2)))));
  EXPECT_EQ(run.num_broken, 2U);
}

TEST(RunLog, LeavesOutARowOfCsvWithoutItsEndForItsNumberMayBeHalf) {
  const test::ScratchFolder folder;
  const std::string path = folder.write(
      "log.csv", "step,time,loss,acc\n1,5.0,0.5\n2,6.0,nan,0.25\n3,7.0,,x\n4,8.0,1,2,3\n5,9.0,0.1");

  const RunLog run = only_run(path);

  EXPECT_THAT(run.metrics,
              ElementsAre(Pair("acc", ElementsAre(is_at(2, 0.25))),
                          Pair("loss", ElementsAre(is_at(1, 0.5), is_gap(2)))));
  EXPECT_EQ(run.num_broken, 1U);  // more cells than columns
  EXPECT_EQ(run.metrics.at("loss").front().time, 5.0);
}

TEST(RunLog, CountsStepsThatAreNotInTheFile) {
  const test::ScratchFolder folder;
  const std::string path = folder.write(
      "x.jsonl", "{\"loss\":5}\n{\"loss\":6}\n{\"step\":9,\"loss\":7}\n{\"loss\":8}\n");

  EXPECT_THAT(only_run(path).metrics.at("loss"),
              ElementsAre(is_at(0, 5), is_at(1, 6), is_at(9, 7), is_at(10, 8)));
}

TEST(RunLog, AnEmptyFileIsARunWithoutNumbers) {
  const test::ScratchFolder folder;

  EXPECT_THAT(only_run(folder.write("log.jsonl", "")).metrics, IsEmpty());
  EXPECT_THAT(only_run(folder.write("log.csv", "")).metrics, IsEmpty());
  EXPECT_THAT(only_run(folder.write("events.out.tfevents.1.h", "")).metrics, IsEmpty());
}

TEST(RunLog, FindsTheRunsBelowAFolderEachOnce) {
  const test::ScratchFolder folder;
  const std::string line = "{\"step\":1,\"loss\":1}\n";
  folder.write("runs/b/log.jsonl", line);
  folder.write("runs/b/log.csv", "step,other\n1,2\n");
  folder.write("runs/a/deep/log.csv", "step,loss\n1,2\n");
  folder.write("runs/empty/log.jsonl", "");
  folder.write("runs/notes.txt", "x");
  std::filesystem::create_directory_symlink(folder.path() / "runs", folder.path() / "runs/loop");

  const auto runs = read_runs(folder.file("runs/"));

  ASSERT_TRUE(runs);
  ASSERT_EQ(runs->size(), 2U);
  EXPECT_EQ((*runs)[0].name, folder.file("runs/a/deep"));
  EXPECT_EQ((*runs)[1].name, folder.file("runs/b"));
  EXPECT_THAT((*runs)[1].metrics, ElementsAre(Pair("loss", ElementsAre(is_at(1, 1)))));
}

TEST(RunLog, SaysWhatIsNoRun) {
  const test::ScratchFolder folder;
  folder.write("empty/notes.txt", "x");

  EXPECT_THAT(message_of(folder.file("nowhere")), HasSubstr("there is no run"));
  EXPECT_THAT(message_of(folder.file("empty")), HasSubstr("no numbers of a run in"));
  EXPECT_THAT(message_of(folder.file("empty/notes.txt")), HasSubstr("is no tracking file"));
  EXPECT_THAT(message_of("/dev/null"), HasSubstr("is no tracking file"));
}

TEST(RunLog, ALargeFileIsAnErrorOfOneLookAndANoticeOfAnother) {
  const test::ScratchFolder folder;
  const std::string good = "{\"step\":1,\"loss\":1}\n";
  folder.write("runs/a/log.jsonl", good + good);
  folder.write("runs/b/log.jsonl", good);
  const std::string path = folder.file("runs");

  const auto all = read_runs(path, good.size());
  ASSERT_FALSE(all);
  EXPECT_THAT(all.error().message(), HasSubstr("a/log.jsonl has more than"));

  const NewestRuns newest = read_newest_runs(path, {.file_bytes = good.size()});
  ASSERT_EQ(newest.runs.size(), 1U);
  EXPECT_EQ(newest.runs[0].name, folder.file("runs/b"));
  EXPECT_THAT(newest.notice, HasSubstr("a/log.jsonl has more than"));
}

TEST(RunLog, WhatWasWrittenLastIsReadFirst) {
  const test::ScratchFolder folder;
  const std::string line = "{\"step\":1,\"loss\":1}\n";
  const auto now = std::filesystem::file_time_type::clock::now();
  for (int i = 0; i < 4; ++i) {
    const std::string file = folder.write("runs/" + std::to_string(i) + "/log.jsonl", line);
    std::filesystem::last_write_time(file, now - std::chrono::hours(i == 2 ? 0 : 10 - i));
  }

  const NewestRuns few = read_newest_runs(folder.file("runs"), {.runs = 2});
  EXPECT_THAT(few.runs,
              ElementsAre(Field(&RunLog::name, folder.file("runs/2")),
                          Field(&RunLog::name, folder.file("runs/3"))));
  EXPECT_THAT(few.notice, HasSubstr("only the 2 runs are read that were written last, not 2"));

  const NewestRuns small = read_newest_runs(folder.file("runs"), {.total_bytes = 3 * line.size()});
  EXPECT_EQ(small.runs.size(), 3U);
  EXPECT_EQ(small.runs.front().name, folder.file("runs/1"));
  EXPECT_THAT(small.notice, HasSubstr("1 older files are not read"));

  EXPECT_THAT(read_newest_runs(folder.file("runs"), {}).notice, IsEmpty());
}

// Nobody writes to the pipe: to open it as usual would never end.
TEST(RunLog, IsReadFromPlainFilesAlone) {
  const test::ScratchFolder folder;
  folder.write("runs/a/log.csv", "step,loss\n1,2\n");
  const std::string pipe = folder.file("runs/a/log.jsonl");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::filesystem::create_symlink("/dev/zero", folder.file("runs/events.out.tfevents.1.h"));

  EXPECT_THAT(only_run(folder.file("runs")).metrics,
              ElementsAre(Pair("loss", ElementsAre(is_at(1, 2)))));
  EXPECT_EQ(read_newest_runs(folder.file("runs"), {}).runs.size(), 1U);
  EXPECT_THAT(message_of(pipe), HasSubstr("is no tracking file"));
  for (const std::string& path : {pipe, std::string("/dev/zero")}) {
    const auto text = read_tracking_file(path, 1000);
    ASSERT_FALSE(text);
    EXPECT_THAT(text.error().message(), HasSubstr("is no plain file"));
  }
}

TEST(RunLog, ALineOfEndlessBracesIsNoTrouble) {
  const test::ScratchFolder folder;
  std::string line;
  for (int i = 0; i < 100'000; ++i) line += "{\"a\":";
  line += "1" + std::string(100'000, '}') + "\n{\"b\":2}\n";

  EXPECT_THAT(only_run(folder.write("x.jsonl", line)).metrics,
              ElementsAre(Pair("b", ElementsAre(is_at(0, 2)))));
}

}  // namespace
}  // namespace accel::launcher::run_log_test
