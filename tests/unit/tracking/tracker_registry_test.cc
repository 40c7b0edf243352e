#include "libaccel/tracking/tracker_registry.h"

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <accel/error.h>

#include "tests/support/error_of.h"
#include "tests/support/scratch_folder.h"

namespace accel {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class OwnTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return "own"; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
};

std::vector<std::string> names_of(const std::vector<LogWith::Choice>& choices) {
  std::vector<std::string> names;
  for (const auto& choice : choices)
    names.push_back(choice.tracker != nullptr ? "object " + choice.tracker->name() : choice.name);
  return names;
}

TEST(FilterTrackers, KeepsEachNameOnceAndObjectsAmongThem) {
  const LogWith log_with{"jsonl", std::make_shared<OwnTracker>(), "csv", "jsonl"};

  EXPECT_THAT(names_of(filter_trackers(log_with, "runs")),
              ::testing::ElementsAre("jsonl", "object own", "csv"));
}

TEST(FilterTrackers, RefusesAnUnknownNameWithThoseThatExist) {
  const Error error = test::error_of([] { (void)filter_trackers("tensorbord", "runs"); });

  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), HasSubstr("Unsupported logging capability: tensorbord"));
  EXPECT_THAT(error.message(), HasSubstr("comet_ml, csv, dvclive"));
}

TEST(FilterTrackers, WantsALoggingDirectoryWhereTheTrackerDoes) {
  const Error error = test::error_of([] { (void)filter_trackers("tensorboard", ""); });

  EXPECT_THAT(error.message(),
              HasSubstr("Logging with `tensorboard` requires a `logging_dir` to be passed in."));
}

TEST(FilterTrackers, TakesNoneForNothing) {
  EXPECT_THAT(filter_trackers({}, ""), IsEmpty());
}

TEST(RegisterTrackerClass, LetsLogWithNameATrackerOfOnesOwn) {
  register_tracker_class("registered", false, [](const auto&, const auto&, const auto&) {
    return std::make_shared<OwnTracker>();
  });

  ASSERT_THAT(names_of(filter_trackers("registered", "")), ::testing::ElementsAre("registered"));
  EXPECT_EQ(tracking::make_tracker("registered", "project", "", {})->name(), "own");
}

TEST(QueuedTracker, RefusesEntriesBeforeItsStart) {
  JsonlTracker tracker("run", "runs");

  EXPECT_EQ(test::error_of([&] {
              tracker.log({{"loss", 0.5}}, 1, {});
            }).code(),
            ErrorCode::kNotInitialized);
}

TEST(QueuedTracker, HasWrittenWhatWasLoggedWhenItIsFinished) {
  const test::ScratchFolder folder;
  JsonlTracker tracker("run", folder.path());
  tracker.start();

  tracker.log({{"loss", 0.5}}, 7, {});
  tracker.finish();

  std::ifstream file(folder.path() / "run" / "log.jsonl");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  EXPECT_THAT(text, HasSubstr("{\"step\":7,"));
}

TEST(QueuedTracker, NamesTheFolderThatCannotBeMade) {
  const test::ScratchFolder folder;
  std::ofstream(folder.path() / "file") << "x";
  TensorBoardTracker tracker("run", folder.path() / "file");

  const Error error = test::error_of([&] { tracker.start(); });

  EXPECT_EQ(error.code(), ErrorCode::kFileIo);
  EXPECT_THAT(error.message(), HasSubstr("file/run"));
}

TEST(TensorBoardTracker, RefusesAnOptionThatItDoesNotHave) {
  const Error error = test::error_of([] {
    TensorBoardTracker("run", "runs", {{"flush_seconds", 3}});
  });

  EXPECT_THAT(error.message(), HasSubstr("no option flush_seconds"));
}

TEST(PythonTracker, RefusesCallsThatItsSdkDoesNotHave) {
  PythonTracker tracker("trackio", "run", "runs");

  EXPECT_EQ(test::error_of([&] { tracker.log_images({}, 1, {}); }).code(), ErrorCode::kUnsupported);
  EXPECT_EQ(test::error_of([&] { tracker.log_table("t", {}, {}); }).code(),
            ErrorCode::kUnsupported);
  EXPECT_EQ(test::error_of([&] { PythonTracker("wandbee", "run", "runs"); }).code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace accel
